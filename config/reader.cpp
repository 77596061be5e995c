#include "config/reader.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "config/automatic.h"
#include "config/key_words.h"
#include "config/suggestion.h"
#include "config/value_check.h"

namespace zerorun {
namespace {

/// The section that is being read.
struct Section {
  const Value& object;
  std::string path;   // as the file has it
  std::string table;  // as the key table has it: "*" for a key of the user's own
  std::string type;   // of the optimizer or scheduler whose params these are; empty: any
  bool told = false;  // that nothing in it has an effect here
  bool off = false;   // its switch is off
};

bool is_section_of_types(std::string_view path) {
  return path == "optimizer.params" || path == "scheduler.params";
}

/// Whether a feature without a switch of its own is used: not if it is empty, or all its parts are disabled.
bool is_used(const Value& value) {
  bool any_switch = false;
  bool any_on = false;
  const auto look = [&](const auto& self, const Value& object) -> void {
    for (const Member& member : object.members) {
      if (member.key == "enabled") {
        any_switch = true;
        any_on = any_on || member.value.boolean || member.value.text == "true";
      }
      self(self, member.value);
    }
  };
  look(look, value);
  return any_switch ? any_on : !value.members.empty();
}

class Reader {
 public:
  Reader(const ReadOptions& options, Diagnostics& diagnostics)
      : options_(options), diagnostics_(diagnostics) {}

  Settings run(const Value& document) {
    settings_ = Settings(document.at);
    read_members({document, "", "", ""});
    return std::move(settings_);
  }

 private:
  void read_members(const Section& section) {
    for (const Member& member : section.object.members) {
      if (!is_remark(member.key)) read_member(section, member);
    }
  }

  void read_member(const Section& section, const Member& member) {
    const KeyFact* fact = fact_of(section, member.key);
    if (!fact) return report_unknown(section, member);
    const std::string path = join_path(section.path, shortened(member.key));
    if (fact->status == KeyStatus::replaced) {
      return report_key(member, path, "the present name of the key", std::string(fact->reason), leftover());
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
    // A dotted key would look like the path of another section.
    if (key.empty() || key == "*" || key.find('.') != std::string::npos) return nullptr;
    if (const KeyFact* fact = find_key(join_path(section.table, key))) return fact;
    return find_key(join_path(section.table, "*"));
  }

  /// What older DeepSpeed took without a word.
  Severity leftover() const { return options_.compat ? Severity::warning : Severity::error; }

  void report_unknown(const Section& section, const Member& member) {
    // To find a suggestion takes time that a file of very many unknown keys does not get: all the others are
    // typos in it.
    const bool heard = diagnostics_.keeps(Severity::error) && diagnostics_.keeps(Severity::warning);
    const Remedy remedy = heard ? unknown_key(section.table, member.key) : Remedy{"remove it", true};
    const Severity severity = remedy.is_typo ? Severity::error : leftover();
    report_key(member, join_path(section.path, shortened(member.key)), "a known key", remedy.text, severity);
  }

  void report_key(const Member& member, const std::string& path, std::string expected, std::string remedy,
                  Severity severity = Severity::error) {
    diagnostics_.report({member.key_at, path, std::move(expected), in_quotes(member.key), std::move(remedy)},
                        severity);
  }

  /// Under which better name the file has this key too, if it does.
  static std::string_view other_name_in_use(const Section& section, const KeyFact& fact,
                                            const Member& member) {
    if (fact.status != KeyStatus::old_name) {
      const bool lesser = !fact.other_name.empty() && member.key == fact.other_name;
      return lesser && section.object.find(name_of(fact.path)) ? name_of(fact.path) : std::string_view();
    }
    // The present key stands beside the old one, or in a section beside it.
    const std::string inside = join_path(section_of(fact.path), "");
    if (!fact.target.starts_with(inside)) return {};
    const std::string_view inner = section_of(fact.target.substr(inside.size()));
    const Value* around = inner.empty() ? &section.object : section.object.find(inner);
    for (const std::string_view name : {name_of(fact.target), find_key(fact.target)->other_name}) {
      if (around && !name.empty() && around->find(name)) return name;
    }
    // Of several old names the one that the table has first stands.
    for (const KeyFact* other : key_facts()) {
      if (other == &fact) break;
      const bool same = other->status == KeyStatus::old_name && other->target == fact.target &&
                        section_of(other->path) == section_of(fact.path);
      if (same && section.object.find(name_of(other->path))) return name_of(other->path);
    }
    return {};
  }

  void read_old_name(const Section& section, const KeyFact& fact, const Member& member,
                     const std::string& path) {
    const KeyFact* present = find_key(fact.target);
    ZR_CHECK(present, "no row for " + std::string(fact.target));
    const bool form_changed = present->type == KeyType::section && fact.type == KeyType::boolean;
    diagnostics_.tell(Severity::warning, member.key_at, path,
                      form_changed
                          ? "old form of " + in_quotes(name_of(fact.target)) + R"(: {"device": "cpu"})"
                          : "old name of " + std::string(fact.target));
    if (form_changed) return read_old_offload(section, fact, *present, member.value, path);
    if (fact.type != KeyType::section) return read_value(section, *present, member.value, path);
    read_section(section, fact, member.value, path, present);
  }

  /// `true` stands for {"device": "cpu"}.
  void read_old_offload(const Section& section, const KeyFact& fact, const KeyFact& present,
                        const Value& value, const std::string& path) {
    const ValueCheck check = check_value(fact, value);
    if (check.fit != Fit::value) return refuse(fact, value, path, check);
    const KeyFact* device = find_key(join_path(present.path, "device"));
    ZR_CHECK(device, "no row for the device of " + std::string(present.path));
    const bool offloaded = std::get<bool>(check.value);
    if (offloaded) tell_status(section, *device, value, std::string("cpu"), path);
    settings_.put({device, std::string(offloaded ? "cpu" : "none"), Source::file, value.at, path});
  }

  /// `present`: the section whose keys these are, if the file uses its old name.
  void read_section(const Section& outer, const KeyFact& fact, const Value& value, const std::string& path,
                    const KeyFact* present = nullptr) {
    const ValueCheck check = check_value(fact, value);
    if (check.fit == Fit::nothing) return;
    if (check.fit == Fit::refused) return refuse(present ? *present : fact, value, path, check);
    Section section{value, path, std::string(fact.path), "", outer.told, outer.off};
    settings_.put({present ? present : &fact, {}, Source::file, value.at, path});
    tell_of_section(present ? *present : fact, section);
    if (is_section_of_types(fact.path)) section.type = type_beside(outer.object, fact);
    read_members(section);
  }

  void tell_of_section(const KeyFact& fact, Section& section) {
    const bool switched = !fact.switch_key.empty();
    if (switched) section.off = section.off || is_off(section.object, fact);
    if (fact.status == KeyStatus::supported || section.told) return;
    section.told = true;
    if (section.off) return;
    const std::string reason(fact.reason);
    if (fact.changes_result && options_.purpose == Purpose::run) {
      return refuse_feature(section.object, section.path, "no such section", "an object", fact);
    }
    const std::string text = fact.status == KeyStatus::no_effect ? "changes nothing: " + reason
                                                                 : "known and not offered: " + reason;
    diagnostics_.tell(Severity::note, section.object.at, section.path, text);
  }

  /// As the switch says, or the program where that is "auto".
  bool is_off(const Value& object, const KeyFact& section) const {
    const Value* value = object.find(section.switch_key);
    if (!value) return true;
    const KeyFact* row = find_key(join_path(section.path, section.switch_key));
    ZR_CHECK(row, "no row for the switch of " + std::string(section.path));
    ValueCheck check = check_value(*row, *value);
    if (check.fit == Fit::automatic) {
      check.value = resolve_automatic(*row, options_.arguments, options_.hidden_size).value;
    }
    const bool* on = std::get_if<bool>(&check.value);
    return on && !*on;
  }

  /// The type named beside `params`, as the table spells it; empty if there is none, or one unknown.
  static std::string type_beside(const Value& object, const KeyFact& params) {
    const Value* type = object.find("type");
    const KeyFact* fact = find_key(join_path(section_of(params.path), "type"));
    return type && fact ? match_choice(*fact, type->text) : "";
  }

  /// `row`: that of the present name, if the file uses an old one.
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
      if (!tell_automatic(section, row, value, path, source, check.value)) source = Source::refused;
    } else if (!check.understood.empty()) {
      diagnostics_.tell(check.severity, value.at, path, describe(value) + " is " + check.understood);
    }
    if (source != Source::open && source != Source::refused)
      tell_status(section, row, value, check.value, path);
    settings_.put({&row, std::move(check.value), source, value.at, path});
  }

  /// False: refused.
  bool tell_automatic(const Section& section, const KeyFact& fact, const Value& value,
                      const std::string& path, Source source, const SettingValue& resolved) {
    std::string from = "the default";
    if (source == Source::program) from = "the program's arguments";
    if (source == Source::model) from = "the model's hidden size";
    const bool matters = !section.off && (!section.told || fact.changes_result);
    if (source == Source::open && options_.purpose == Purpose::run && matters) {
      diagnostics_.report(
          {value.at, path, expected_of(fact), "\"auto\", which nobody has filled in", how_to_give(fact)});
      return false;
    }
    if (source == Source::open) {
      from = fact.automatic == Automatic::model ? "the model's hidden size gives the value"
                                                : "the program gives the value";
      diagnostics_.tell(Severity::note, value.at, path, "\"auto\": " + from + " when it starts");
    } else {
      const bool left_out = std::holds_alternative<std::monostate>(resolved);
      diagnostics_.tell(Severity::note, value.at, path,
                        left_out ? "\"auto\" is the same as leaving the key out"
                                 : "\"auto\" stands for " + to_json(resolved) + ", from " + from);
    }
    return true;
  }

  /// What becomes of a value that fits: nothing, where ZeroRun has its own way; an error, where a run would
  /// compute something else.
  void tell_status(const Section& section, const KeyFact& fact, const Value& value, const SettingValue& meant,
                   const std::string& path) {
    if (section.off) return;
    const auto* chosen = std::get_if<std::string>(&meant);
    if (chosen && has_word(fact.choices_to_come, *chosen)) {
      return tell_choice(value, path, fact, *chosen);
    }
    if (fact.status == KeyStatus::supported || is_default(fact, value, meant)) return;
    const std::string reason(fact.reason);
    if (fact.changes_result) {
      const std::string usual = fact.fallback.empty() ? "no such key" : std::string(fact.fallback);
      return tell_feature(value, path, usual, fact, reason);
    }
    if (section.told) return;
    const bool no_effect = fact.status == KeyStatus::no_effect;
    diagnostics_.tell(
        Severity::note, value.at, path,
        describe(value) + (no_effect ? " changes nothing: " : " is known and not offered: ") + reason);
  }

  void tell_choice(const Value& value, const std::string& path, const KeyFact& fact,
                   const std::string& chosen) {
    const std::string nearest(nearest_offered(fact, chosen));
    if (nearest.empty()) {
      return tell_feature(value, path, expected_of(fact), fact, "ZeroRun does not have it");
    }
    if (options_.purpose == Purpose::run) {
      return diagnostics_.report({value.at, path, expected_of(fact),
                                  describe(value) + ", which ZeroRun does not offer",
                                  "write " + in_quotes(nearest) + ", the nearest that it does"});
    }
    diagnostics_.tell(Severity::note, value.at, path,
                      describe(value) +
                          " is known and not offered, and a run refuses it: the nearest choice is " +
                          in_quotes(nearest));
  }

  static bool is_default(const KeyFact& fact, const Value& value, const SettingValue& meant) {
    if (fact.type == KeyType::object || fact.type == KeyType::anything) return !is_used(value);
    return !fact.fallback.empty() && meant == fallback_of(fact);
  }

  void tell_feature(const Value& value, const std::string& path, const std::string& usual,
                    const KeyFact& fact, const std::string& reason) {
    if (options_.purpose == Purpose::run) return refuse_feature(value, path, usual, describe(value), fact);
    diagnostics_.tell(Severity::note, value.at, path,
                      describe(value) + " is known and not offered, and a run refuses it: " + reason);
  }

  void refuse_feature(const Value& value, const std::string& path, const std::string& usual,
                      const std::string& found, const KeyFact& fact) {
    std::string remedy = fact.advice.empty() ? "remove it" : std::string(fact.advice);
    if (!fact.reason.empty()) remedy = std::string(fact.reason) + ": " + remedy;
    diagnostics_.report({value.at, path, usual, found + ", which ZeroRun does not offer", std::move(remedy)});
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
};

}  // namespace

Settings read_settings(const Value& document, const ReadOptions& options, Diagnostics& diagnostics) {
  return Reader(options, diagnostics).run(document);
}

}  // namespace zerorun
