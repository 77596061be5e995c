#include "config/reader.h"

#include <algorithm>
#include <utility>

#include "config/automatic.h"
#include "config/key_words.h"
#include "config/leftovers.h"
#include "config/suggestion.h"
#include "config/value_check.h"

namespace zerorun::config {
namespace {

enum class Switch { off, open, on };  // open: "auto" without a value yet

/// The section that is being read.
struct Section {
  const Value& object;
  std::string path;       // path as the file spells it
  std::string table;      // path in the key table
  std::string type;       // for `params`: type of the optimizer or scheduler; empty: any
  bool reported = false;  // the status of the section as a whole has been reported
  Switch state = Switch::on;
};

bool is_section_of_types(std::string_view path) {
  return path == "optimizer.params" || path == "scheduler.params";
}

/// Whether the switch of an object is on. Its value has no row, so any value but these is taken as on. "auto"
/// is off, because nothing fills it in.
bool is_on(const Value* value) {
  if (!value || value->kind == ValueKind::null || value->text == "false" || value->text == "auto")
    return false;
  if (value->kind == ValueKind::number) return value->number != 0;
  return value->kind != ValueKind::boolean || value->boolean;
}

bool any_on(const Value& object, std::string_view switch_key) {
  return is_on(object.find(switch_key)) ||
         std::ranges::any_of(object.members,
                             [&](const DocumentMember& member) { return any_on(member.value, switch_key); });
}

/// Whether an object, whose keys are not checked, asks for its feature.
bool is_used(const KeyFact& fact, const Value& value) {
  if (value.kind != ValueKind::object || fact.asks_if_present) return true;
  if (fact.deep_switches) return any_on(value, fact.switch_key);
  if (!fact.switch_key.empty()) return is_on(value.find(fact.switch_key));
  const Value* enabled = value.find("enabled");
  return !value.members.empty() && (!enabled || is_on(enabled));
}

/// The object at the path `part` in `object`, if it is on and so are all objects around it; else null.
const Value* part_that_is_on(const Value& object, std::string_view switch_key, std::string_view part) {
  const Value* inner = &object;
  while (inner && is_on(inner->find(switch_key)) && !part.empty()) {
    const auto end = std::min(part.find('.'), part.size());
    inner = inner->find(part.substr(0, end));
    part.remove_prefix(std::min(end + 1, part.size()));
  }
  return part.empty() && inner && is_on(inner->find(switch_key)) ? inner : nullptr;
}

class Reader {
 public:
  Reader(const ReadOptions& options, Diagnostics& diagnostics)
      : options_(options), diagnostics_(diagnostics) {}

  Settings run(const Value& document) {
    settings_ = Settings(document.at);
    read_members({document, "", "", ""});
    automatic_notes_.report(diagnostics_);
    return std::move(settings_);
  }

 private:
  void read_members(const Section& section) {
    for (const DocumentMember& member : section.object.members) {
      if (!is_remark(member.key)) read_member(section, member);
    }
  }

  void read_member(const Section& section, const DocumentMember& member) {
    const std::string path = join_path(section.path, shortened(member.key));
    if (const Leftover* leftover = find_leftover(section.table, member.key, member.value)) {
      return diagnostics_.add_message(Severity::warning, member.key_at, path,
                                      "has no effect: " + std::string(leftover->reason) + "; remove it");
    }
    const KeyFact* fact = fact_of(section, member.key);
    if (!fact) return report_unknown(section, member);
    if (fact->status == KeyStatus::replaced) {
      return report_key(member, path, "the present name of the key", std::string(fact->reason),
                        severity_of_ignored());
    }
    if (!section.type.empty() && !fact->types.empty() && !has_word(fact->types, section.type)) {
      return diagnostics_.report({member.key_at, path, "a parameter of " + section.type,
                                  "one of " + in_words(fact->types), "remove it"});
    }
    if (const auto other = other_name_in_use(section, *fact, member); !other.empty()) {
      diagnostics_.report({member.key_at, path, "one name of the key",
                           in_quotes(other) + " as well, which is the same key", "remove one of the two"});
      return;
    }
    if (fact->status == KeyStatus::old_name) return read_old_name(section, *fact, member, path);
    if (fact->type == KeyType::section) return read_section(section, *fact, member.value, path);
    read_value(section, *fact, member.value, path);
  }

  const KeyFact* fact_of(const Section& section, const std::string& key) const {
    // A key with a dot could be confused with a path into another section.
    if (key.empty() || key.find('.') != std::string::npos) return nullptr;
    return find_key(join_path(section.table, key));
  }

  /// The severity of keys that old DeepSpeed versions silently accepted.
  Severity severity_of_ignored() const { return options_.compat ? Severity::warning : Severity::error; }

  void report_unknown(const Section& section, const DocumentMember& member) {
    // Searching for a suggestion takes time. So once no more diagnostics are kept, unknown keys are counted
    // as errors without a search.
    const bool heard = diagnostics_.keeps(Severity::error) && diagnostics_.keeps(Severity::warning);
    const Remedy remedy = heard ? unknown_key(section.table, member.key, member.value) : Remedy{"remove it"};
    const Severity severity = remedy.meant || !heard ? Severity::error : severity_of_ignored();
    const std::string path = join_path(section.path, shortened(member.key));
    report_key(member, path, "a known key", remedy.text, severity);
    if (remedy.meant) read_misspelled(section, *remedy.meant, member.value, path);
  }

  /// Reads a misspelled section as the section `meant`. Any other misspelled key is recorded as refused: its
  /// value is not checked, and the key is not reported as missing.
  void read_misspelled(const Section& section, const KeyFact& meant, const Value& value,
                       const std::string& path) {
    const bool has_both = section.object.find(name_of(meant.path)) || settings_.find(meant.path);
    if (has_both || meant.status == KeyStatus::old_name || meant.status == KeyStatus::replaced) return;
    if (meant.type != KeyType::section) {
      settings_.put({&meant, {}, Source::refused, value.at, path});
    } else if (value.kind == ValueKind::object) {
      read_section(section, meant, value, path);
    }
  }

  void report_key(const DocumentMember& member, const std::string& path, std::string expected,
                  std::string remedy, Severity severity = Severity::error) {
    diagnostics_.report({member.key_at, path, std::move(expected), in_quotes(member.key), std::move(remedy)},
                        severity);
  }

  /// Returns another name under which the section has the same key too, if that name takes precedence; else
  /// an empty text.
  static std::string other_name_in_use(const Section& section, const KeyFact& fact,
                                       const DocumentMember& member) {
    for (const std::string& name : better_names(fact, member.key)) {
      const std::string_view inner = section_of(name);
      const Value* around = inner.empty() ? &section.object : section.object.find(inner);
      if (around && around->find(name_of(name))) return std::string(name_of(name));
    }
    return {};
  }

  void read_old_name(const Section& section, const KeyFact& fact, const DocumentMember& member,
                     const std::string& path) {
    const KeyFact& present = row_of(fact.target);
    if (present.type == KeyType::section && fact.type == KeyType::boolean) {
      return read_old_offload(section, fact, present, member, path);
    }
    diagnostics_.add_message(Severity::warning, member.key_at, path,
                             "old name of " + std::string(fact.target));
    if (fact.type != KeyType::section) return read_value(section, present, member.value, path);
    read_section(section, fact, member.value, path, &present);
  }

  /// The old form `true` means {"device": "cpu"}.
  void read_old_offload(const Section& section, const KeyFact& fact, const KeyFact& present,
                        const DocumentMember& member, const std::string& path) {
    const ValueCheck check = check_value(fact, member.value);
    if (check.fit != Fit::value) return refuse(fact, member.value, path, check);
    const KeyFact& row = row_of(join_path(present.path, "device"));
    const std::string device = std::get<bool>(check.value) ? "cpu" : "none";
    diagnostics_.add_message(
        Severity::warning, member.key_at, path,
        "old form of " + in_quotes(name_of(fact.target)) + R"(: {"device": ")" + device + "\"}");
    tell_status(section, row, member.value, device, path);
    settings_.put({&present, {}, Source::file, member.value.at, path});
    settings_.put({&row, device, Source::file, member.value.at, path});
  }

  /// `present` is the row of the section's present name, if the file uses an old name.
  void read_section(const Section& outer, const KeyFact& fact, const Value& value, const std::string& path,
                    const KeyFact* present = nullptr) {
    const KeyFact& row = present ? *present : fact;
    const ValueCheck check = check_value(fact, value);
    if (!check.understood.empty()) tell_understood(value, path, check);
    if (check.fit == Fit::nothing) return;
    if (check.fit == Fit::refused) return refuse(row, value, path, check);
    Section section{value, path, std::string(fact.path), "", outer.reported, outer.state};
    settings_.put({&row, {}, Source::file, value.at, path});
    if (!row.switch_key.empty()) read_switch(row, section);
    tell_of_section(row, section);
    if (is_section_of_types(fact.path)) section.type = type_beside(outer.object, fact);
    read_members(section);
  }

  /// Sets the section's switch. A section is on only if all sections that contain it are on.
  void read_switch(const KeyFact& fact, Section& section) {
    const KeyFact& row = row_of(join_path(fact.path, fact.switch_key));
    const bool was_on = section.state != Switch::off;
    const Value* value = section.object.find(fact.switch_key);
    section.state = std::min(section.state, state_of(row, value));
    const auto is_known = [&](const DocumentMember& member) {
      return fact_of(section, member.key) != nullptr;
    };
    if (value || !was_on || std::ranges::none_of(section.object.members, is_known)) return;
    diagnostics_.add_message(Severity::warning, section.object.at, section.path,
                             "is off: " + in_quotes(fact.switch_key) + " is left out, and " +
                                 std::string(row.fallback) + " by default");
  }

  /// Returns the switch's state from the file, or from the program's arguments if the file says "auto".
  Switch state_of(const KeyFact& row, const Value* value) const {
    if (!value) return Switch::off;
    ValueCheck check = check_value(row, *value);
    if (check.fit == Fit::nothing) return Switch::off;
    if (check.fit == Fit::automatic) {
      check.value = resolve_automatic(row, options_.arguments, options_.hidden_size).value;
    }
    if (std::holds_alternative<std::monostate>(check.value)) return Switch::open;
    return check.value == fallback_of(row) ? Switch::off : Switch::on;
  }

  /// Reports that a section is not supported, once instead of for each of its keys. Does not report it if the
  /// switch's own row makes the switch an error.
  void tell_of_section(const KeyFact& fact, Section& section) {
    if (fact.status == KeyStatus::supported || section.reported) return;
    section.reported = true;
    if (section.state == Switch::off) return;
    if (fact.changes_result) {
      return refuse_feature(section, section.object, section.path, "no such section", fact);
    }
    const KeyFact* row = find_key(join_path(fact.path, fact.switch_key));
    const bool asked = row ? !row->changes_result : asks(section);
    if (asked) report_loss(fact, section.object, section.path, "");
  }

  /// Whether a section without a switch sets a key to a value other than its default.
  bool asks(const Section& section) const {
    return std::ranges::any_of(section.object.members, [&](const DocumentMember& member) {
      const KeyFact* fact = is_remark(member.key) ? nullptr : fact_of(section, member.key);
      if (!fact) return false;
      if (fact->type == KeyType::section) {
        return asks({member.value, "", std::string(fact->path), ""});
      }
      if (fact->changes_result) return false;  // read_value() refuses the key itself
      const ValueCheck check = check_value(*fact, member.value);
      return check.fit == Fit::value && !is_default(*fact, member.value, check.value);
    });
  }

  /// Returns the `type` beside `params`, spelled as in the key table; empty if it is absent or unknown.
  static std::string type_beside(const Value& object, const KeyFact& params) {
    const Value* type = object.find("type");
    const KeyFact* fact = find_key(join_path(section_of(params.path), "type"));
    return type && fact ? match_choice(*fact, type->text) : "";
  }

  /// `row` is the key's row. If the file uses an old name, it is the row of the present name.
  void read_value(const Section& section, const KeyFact& row, const Value& value, const std::string& path) {
    ValueCheck check = check_value(row, value);
    if (check.fit == Fit::nothing) return;
    if (check.fit == Fit::refused) return refuse(row, value, path, check);
    Source source = Source::file;
    if (check.fit == Fit::automatic) {
      AutomaticValue automatic = resolve_automatic(row, options_.arguments, options_.hidden_size);
      source = automatic.source;
      if (source == Source::program && automatic.argument.fit != Fit::value) {
        automatic.argument.found += " from the program's arguments";
        return refuse(row, value, path, automatic.argument);
      }
      check.value = std::move(automatic.value);
      if (refuses_open(section, row, source)) {
        diagnostics_.report({value.at, path, expected_of(row), "\"auto\" without a value", how_to_give(row)});
        source = Source::refused;
      } else {
        automatic_notes_.add(row, value.at, path, source, check.value);
      }
    } else if (!check.understood.empty()) {
      tell_understood(value, path, check);
    }
    if (source != Source::open && source != Source::refused)
      tell_status(section, row, value, check.value, path);
    settings_.put({&row, std::move(check.value), source, value.at, path});
  }

  void tell_understood(const Value& value, const std::string& path, const ValueCheck& check) {
    diagnostics_.add_message(check.severity, value.at, path, describe(value) + " is " + check.understood);
  }

  /// Whether a run must refuse an "auto" that has no value.
  bool refuses_open(const Section& section, const KeyFact& fact, Source source) const {
    const bool matters = section.state != Switch::off && (!section.reported || fact.changes_result);
    return source == Source::open && options_.purpose == Purpose::run && matters;
  }

  /// Reports a valid value that ZeroRun does not implement: as a note if it has no effect, as a warning if it
  /// is not supported, and as an error if training without it gives different results.
  void tell_status(const Section& section, const KeyFact& fact, const Value& value, const SettingValue& meant,
                   const std::string& path) {
    if (section.state == Switch::off) return;
    const auto* chosen = std::get_if<std::string>(&meant);
    if (chosen && has_word(fact.unsupported_choices, *chosen)) {
      return refuse_feature(section, value, path, expected_of(fact), fact, nearest_supported(fact, *chosen));
    }
    if (fact.status == KeyStatus::supported || is_default(fact, value, meant)) return;
    if (fact.changes_result) {
      const std::string usual = fact.fallback.empty() ? "no such key" : std::string(fact.fallback);
      return refuse_feature(section, value, path, usual, fact);
    }
    if (refuse_parts(section, fact, value, path) || section.reported) return;
    report_loss(fact, value, path, fact.type == KeyType::object ? "" : describe(value) + " ");
  }

  /// Returns whether it has reported an error.
  bool refuse_parts(const Section& section, const KeyFact& fact, const Value& value,
                    const std::string& path) {
    bool refused = false;
    for_each_word(fact.refused_parts, [&](std::string_view part) {
      const Value* used = part_that_is_on(value, fact.switch_key, part);
      if (used) refuse_feature(section, *used, join_path(path, part), "no such key", fact);
      refused = refused || used;
    });
    return refused;
  }

  /// Warns that a feature is not supported, or notes that a setting has no effect. `subject` is the value as
  /// text; it is empty for a section.
  void report_loss(const KeyFact& fact, const Value& value, const std::string& path,
                   const std::string& subject) {
    const bool no_effect = fact.status == KeyStatus::no_effect;
    const std::string lost = subject.empty() ? "not supported: " : "is not supported: ";
    diagnostics_.add_message(no_effect ? Severity::note : Severity::warning, value.at, path,
                             subject + (no_effect ? "has no effect: " : lost) + reason_of(fact));
  }

  static bool is_default(const KeyFact& fact, const Value& value, const SettingValue& meant) {
    if (fact.type == KeyType::object || fact.type == KeyType::anything) return !is_used(fact, value);
    return !fact.fallback.empty() && meant == fallback_of(fact);
  }

  /// Reports an error for a feature that is not supported, or only a warning if the program may still switch
  /// the section off. `nearest` is the choice to suggest instead.
  void refuse_feature(const Section& section, const Value& value, const std::string& path,
                      const std::string& usual, const KeyFact& fact, std::string_view nearest = {}) {
    std::string remedy = fact.advice.empty() ? "remove it" : std::string(fact.advice);
    if (!nearest.empty()) remedy = "write " + in_quotes(nearest) + ", the closest one that is supported";
    if (!fact.reason.empty()) remedy = reason_of(fact) + ": " + remedy;
    diagnostics_.report(
        {value.at, path, usual, describe(value) + ", which ZeroRun does not support", std::move(remedy)},
        section.state == Switch::open ? Severity::warning : Severity::error);
  }

  void refuse(const KeyFact& fact, const Value& value, const std::string& path, const ValueCheck& check) {
    const Value& wrong = check.item ? value.items.at(*check.item) : value;
    const std::string suffix = check.item ? "[" + std::to_string(*check.item) + "]" : "";
    diagnostics_.report({wrong.at, path + suffix, check.expected, check.found, check.remedy});
    settings_.put({&fact, {}, Source::refused, value.at, path});
  }

  const ReadOptions& options_;
  Diagnostics& diagnostics_;
  Settings settings_;
  AutomaticNotes automatic_notes_;
};

}  // namespace

Settings read_settings(const Value& document, const ReadOptions& options, Diagnostics& diagnostics) {
  return Reader(options, diagnostics).run(document);
}

}  // namespace zerorun::config
