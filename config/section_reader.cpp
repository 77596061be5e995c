#include "config/section_reader.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "config/number.h"
#include "config/suggestion.h"

namespace zerorun {
namespace {

bool within(const Range& range, double value) {
  const bool low = range.above_min ? value > range.min : value >= range.min;
  const bool high = range.below_max ? value < range.max : value <= range.max;
  return low && high;
}

std::string list_of(std::string_view words) {
  std::string list;
  for_each_word(words,
                [&](std::string_view word) { list += (list.empty() ? "" : " or ") + std::string(word); });
  return list;
}

std::string range_text(const Range& range) {
  const bool has_min = range.min != Range().min;
  const bool has_max = range.max != Range().max;
  std::ostringstream text;
  if (has_min && has_max && !range.above_min && !range.below_max) {
    text << " from " << range.min << " to " << range.max;
  } else {
    if (has_min) text << (range.above_min ? " greater than " : " of at least ") << range.min;
    if (has_min && has_max) text << " and";
    if (has_max) text << (range.below_max ? " less than " : " at most ") << range.max;
  }
  return text.str();
}

std::string expected_of(const KeyFact& fact) {
  switch (fact.kind) {
    case KeyKind::section:
      return "an object";
    case KeyKind::integer:
      return "an integer" + range_text(fact.range);
    case KeyKind::number:
      return "a number" + range_text(fact.range);
    case KeyKind::boolean:
      return "true or false";
    case KeyKind::choice:
      return list_of(fact.choices);
    case KeyKind::number_pair:
      return "an array of two numbers, each" + range_text(fact.range);
    case KeyKind::unread:
      break;
  }
  return "any value";
}

std::string advice_of(const KeyFact& fact) {
  if (!fact.advice.empty()) return std::string(fact.advice);
  switch (fact.kind) {
    case KeyKind::boolean:
      return "write true or false, or leave the key out";
    case KeyKind::section:
      return "write an object in braces, or leave the key out";
    default:
      return "write such a number, or leave the key out";
  }
}

/// Whether the text would be a value of this kind if it had no quotes around it.
bool fits_without_quotes(const KeyFact& fact, const std::string& text) {
  if (fact.kind == KeyKind::boolean) return text == "true" || text == "false";
  return (fact.kind == KeyKind::integer || fact.kind == KeyKind::number) && is_number(text);
}

std::string remedy_of(const KeyFact& fact, const Value& value) {
  if (value.kind == ValueKind::string && value.text == "auto") {
    return "nothing here fills in \"auto\", which is for training frameworks: " + advice_of(fact);
  }
  if (value.kind == ValueKind::string && fits_without_quotes(fact, value.text)) {
    return "write " + shortened(value.text) + " without the quotes";
  }
  return advice_of(fact);
}

/// A double holds 0 where the file says a tiny number.
bool is_lost(const Value& value) {
  return value.kind == ValueKind::number && value.number == 0.0 && !is_written_zero(value.literal);
}

std::string found_of(const KeyFact& fact, const Value& value) {
  if (fact.kind == KeyKind::number && is_lost(value)) return describe(value) + ", too small for a double";
  const bool too_large = fact.kind == KeyKind::integer && value.kind == ValueKind::number &&
                         read_integer(value.literal).outcome == IntegerOutcome::out_of_range;
  return describe(value) + (too_large ? ", too large for 64 bits" : "");
}

bool same_in_any_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

std::optional<std::string> match_choice(const KeyFact& fact, std::string_view text) {
  std::optional<std::string> match;
  for_each_word(fact.choices, [&](std::string_view choice) {
    const bool any_case = has_word(fact.any_case, choice);
    if (any_case ? same_in_any_case(choice, text) : choice == text) match = std::string(choice);
  });
  return match;
}

/// The word of a space-separated list that was meant by `text`, if any is near.
std::string nearest_word(std::string_view text, std::string_view list) {
  std::vector<std::string_view> words;
  for_each_word(list, [&](std::string_view word) { words.push_back(word); });
  return std::string(nearest(text, words));
}

}  // namespace

SectionReader::SectionReader(const Value& object, std::string path, Diagnostics& diagnostics,
                             std::string_view type)
    : object_(object), path_(std::move(path)), diagnostics_(diagnostics), type_(type) {
  for (const Member& member : object_.members) check_key(member);
}

void SectionReader::check_key(const Member& member) {
  const std::string path = join_path(path_, member.key);
  const auto refuse_key = [&](std::string expected, std::string found, std::string remedy) {
    diagnostics_.report({member.key_at, path, std::move(expected), std::move(found), std::move(remedy)});
  };
  const bool dotted =
      member.key.find('.') != std::string::npos;  // would look like the path of another section
  if (dotted) {
    refuse_key("a known key", quoted(member.key), unknown_key_remedy(path_, member.key));
  } else if (const KeyFact* fact = find_key(path)) {
    if (!type_.empty() && !fact->types.empty() && !has_word(fact->types, type_)) {
      refuse_key("a parameter of " + type_, "one of " + list_of(fact->types), "remove it");
    } else if (const auto name = name_of(fact->path); member.key != name && object_.find(name)) {
      refuse_key("one name of the key", quoted(name) + " as well, which is the same key",
                 "remove one of the two");
    } else if (fact->usual) {
      check_unchanging(*fact, member);
    }
  } else if (const auto advice = renamed_key(path); !advice.empty()) {
    refuse_key("the present name of the key", quoted(member.key), std::string(advice));
  } else if (is_not_offered(path)) {
    refuse_key("a key that ZeroRun offers", "one that only DeepSpeed has so far", "remove it");
  } else {
    refuse_key("a known key", quoted(member.key), unknown_key_remedy(path_, member.key));
  }
}

void SectionReader::check_unchanging(const KeyFact& fact, const Member& member) {
  bool value = *fact.usual;
  if (!read(member.key, value) || value == *fact.usual) return;
  note_unchanging(member.key);
}

const KeyFact& SectionReader::fact_of(std::string_view name) const {
  const KeyFact* fact = find_key(join_path(path_, name));
  ZR_CHECK(fact, "no facts about " + join_path(path_, name));
  return *fact;
}

/// The name that the file uses for this key.
std::string_view SectionReader::written(std::string_view name) const {
  if (object_.find(name)) return name;
  const KeyFact* fact = find_key(join_path(path_, name));
  return fact && !fact->alias.empty() && object_.find(fact->alias) ? fact->alias : name;
}

/// The key's value, or null if it is absent or as good as absent.
const Value* SectionReader::find_set(const KeyFact& fact, std::string_view name) const {
  const Value* value = find(name);
  if (value && value->kind == ValueKind::null && fact.nullable) return nullptr;
  return value;
}

void SectionReader::refuse(std::string_view name, const KeyFact& fact, const Value& value) {
  report(name, expected_of(fact), found_of(fact, value), remedy_of(fact, value));
}

bool SectionReader::read(std::string_view name, std::optional<int64_t>& target) {
  const KeyFact& fact = fact_of(name);
  const Value* value = find_set(fact, name);
  if (!value) return true;
  if (value->kind == ValueKind::number) {
    const IntegerReading reading = read_integer(value->literal);
    if (reading.outcome == IntegerOutcome::exact && within(fact.range, static_cast<double>(reading.value))) {
      target = reading.value;
      return true;
    }
  }
  refuse(name, fact, *value);
  return false;
}

bool SectionReader::read(std::string_view name, int64_t& target) {
  std::optional<int64_t> value;
  if (!read(name, value)) return false;
  if (value) target = *value;
  return true;
}

bool SectionReader::read_number(const KeyFact& fact, const Value& value, double& target) {
  if (value.kind != ValueKind::number || is_lost(value) || !within(fact.range, value.number)) return false;
  target = value.number;
  return true;
}

bool SectionReader::read(std::string_view name, std::optional<double>& target) {
  const KeyFact& fact = fact_of(name);
  const Value* value = find_set(fact, name);
  if (!value) return true;
  double number = 0.0;
  if (!read_number(fact, *value, number)) {
    refuse(name, fact, *value);
    return false;
  }
  target = number;
  return true;
}

bool SectionReader::read(std::string_view name, double& target) {
  std::optional<double> value;
  if (!read(name, value)) return false;
  if (value) target = *value;
  return true;
}

bool SectionReader::read(std::string_view name, bool& target) {
  const KeyFact& fact = fact_of(name);
  const Value* value = find_set(fact, name);
  if (!value) return true;
  if (value->kind != ValueKind::boolean) {
    refuse(name, fact, *value);
    return false;
  }
  if (fact.only && value->boolean != *fact.only) {
    report(name, *fact.only ? "true" : "false", describe(*value) + ", which only DeepSpeed offers so far",
           "leave the key out");
    return false;
  }
  target = value->boolean;
  return true;
}

bool SectionReader::read_pair(std::string_view name, double& first, double& second) {
  const KeyFact& fact = fact_of(name);
  const Value* value = find_set(fact, name);
  if (!value) return true;
  if (value->kind != ValueKind::array || value->items.size() != 2) {
    refuse(name, fact, *value);
    return false;
  }
  double numbers[2] = {};
  for (std::size_t i = 0; i < 2; ++i) {
    if (read_number(fact, value->items[i], numbers[i])) continue;
    diagnostics_.report({value->items[i].at, std::string(fact.path) + "[" + std::to_string(i) + "]",
                         "a number" + range_text(fact.range), describe(value->items[i]), advice_of(fact)});
    return false;
  }
  first = numbers[0];
  second = numbers[1];
  return true;
}

bool SectionReader::read_choice(std::string_view name, std::optional<std::string>& target) {
  const KeyFact& fact = fact_of(name);
  const Value* value = find_set(fact, name);
  if (!value) return true;
  if (value->kind == ValueKind::string) {
    if (auto match = match_choice(fact, value->text)) {
      target = std::move(match);
      return true;
    }
    if (has_word(fact.not_yet, value->text)) {
      report(name, expected_of(fact), value->literal + ", which only DeepSpeed offers so far",
             advice_of(fact));
      return false;
    }
    if (const std::string meant = nearest_word(value->text, fact.choices); !meant.empty()) {
      report(name, expected_of(fact), describe(*value), "did you mean " + quoted(meant) + "?");
      return false;
    }
  }
  refuse(name, fact, *value);
  return false;
}

std::optional<SectionReader> SectionReader::section(std::string_view name, std::string_view type) {
  const KeyFact& fact = fact_of(name);
  const Value* value = find_set(fact, name);
  if (!value) return std::nullopt;
  if (value->kind != ValueKind::object) {
    refuse(name, fact, *value);
    return std::nullopt;
  }
  return SectionReader(*value, join_path(path_, name), diagnostics_, type);
}

void SectionReader::report(std::string_view name, std::string expected, std::string found,
                           std::string remedy) {
  const Value* value = find(name);
  diagnostics_.report({value ? value->at : object_.at, join_path(path_, written(name)), std::move(expected),
                       std::move(found), std::move(remedy)});
}

void SectionReader::report_absent(std::string_view name) {
  const KeyFact& fact = fact_of(name);
  report(name, expected_of(fact), "nothing", advice_of(fact));
}

void SectionReader::note(std::string_view name, std::string_view text) {
  const Value* value = find(name);
  diagnostics_.note(value ? value->at : object_.at, join_path(path_, written(name)), text);
}

void SectionReader::note_unchanging(std::string_view name) {
  const Value* value = find(name);
  ZR_CHECK(value, "a note on " + join_path(path_, name) + ", which is absent");
  note(name, describe(*value) + " changes nothing: " + std::string(fact_of(name).reason));
}

}  // namespace zerorun
