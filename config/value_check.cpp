#include "config/value_check.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <sstream>

#include "config/key_words.h"
#include "config/number.h"
#include "config/suggestion.h"

namespace zerorun {
namespace {

bool within(const Range& range, double value) {
  const bool low = range.above_min ? value > range.min : value >= range.min;
  const bool high = range.below_max ? value < range.max : value <= range.max;
  return low && high;
}

std::string range_text(const Range& range) {
  const bool has_min = range.min != Range().min;
  const bool has_max = range.max != Range().max;
  std::ostringstream text;
  if (range.min == range.max) {
    text << " that is " << range.min;
  } else if (has_min && has_max && !range.above_min && !range.below_max) {
    text << " from " << range.min << " to " << range.max;
  } else {
    if (has_min) text << (range.above_min ? " greater than " : " of at least ") << range.min;
    if (has_min && has_max) text << " and";
    if (has_max) text << (range.below_max ? " less than " : " at most ") << range.max;
  }
  return text.str();
}

bool is_text(const Value& value, std::string_view text) {
  return value.kind == ValueKind::string && value.text == text;
}

bool same_in_any_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

/// Whether a tiny number in the file became 0 as a double.
bool is_lost(const Value& value) {
  return value.kind == ValueKind::number && value.number == 0.0 && !is_written_zero(value.literal);
}

std::string found_of(const KeyFact& fact, const Value& value) {
  const bool counts = fact.type == KeyType::integer || fact.type == KeyType::size;
  if (fact.type == KeyType::number && is_lost(value)) return describe(value) + ", too small for a double";
  const bool too_large = counts && value.kind == ValueKind::number &&
                         read_integer(value.literal).outcome == IntegerOutcome::out_of_range;
  return describe(value) + (too_large ? ", too large for 64 bits" : "");
}

std::string remedy_of(const KeyFact& fact, const Value& value) {
  const KeyFact* switch_row = find_key(join_path(fact.path, fact.switch_key));
  if (fact.type == KeyType::section && switch_row && switch_row->type == KeyType::boolean &&
      (value.kind == ValueKind::boolean || is_text(value, "auto"))) {
    return "write {" + in_quotes(fact.switch_key) + ": " + value.literal + "}";
  }
  if (value.kind == ValueKind::null) return "leave the key out";
  if (is_text(value, "auto")) return "nothing fills in \"auto\" here: " + advice_of(fact);
  if (value.kind == ValueKind::string && fact.type == KeyType::number && is_number(value.text)) {
    return "write " + shortened(value.text) + " without the quotes";
  }
  if (value.kind == ValueKind::string && fact.type == KeyType::choice) {
    std::vector<std::string_view> words;
    for_each_word(fact.choices, [&](std::string_view word) { words.push_back(word); });
    if (const auto meant = nearest(value.text, words); !meant.empty()) {
      return "did you mean " + in_quotes(meant) + "?";
    }
  }
  return advice_of(fact);
}

ValueCheck refuse(const KeyFact& fact, const Value& value) {
  ValueCheck check;
  check.expected = expected_of(fact);
  check.found = found_of(fact, value);
  check.remedy = remedy_of(fact, value);
  return check;
}

ValueCheck accept(SettingValue value, std::string understood = {}, Severity severity = Severity::warning) {
  ValueCheck check;
  check.fit = Fit::value;
  check.value = std::move(value);
  check.understood = std::move(understood);
  check.severity = severity;
  return check;
}

std::optional<ValueCheck> check_boolean(const Value& value) {
  if (value.kind == ValueKind::boolean) return accept(value.boolean);
  if (!is_text(value, "true") && !is_text(value, "false")) return std::nullopt;
  return accept(value.text == "true", "taken as " + value.text + ": write it without the quotes");
}

std::optional<ValueCheck> check_integer(const KeyFact& fact, const Value& value) {
  const bool digits = value.kind == ValueKind::string && !value.text.empty() &&
                      std::ranges::all_of(value.text, [](unsigned char c) { return std::isdigit(c) != 0; });
  if (value.kind != ValueKind::number && !(digits && is_number(value.text))) return std::nullopt;
  const std::string& literal = digits ? value.text : value.literal;
  IntegerReading reading = read_integer(literal);
  std::string understood = digits ? "taken as " + shortened(literal) + ": write it without the quotes" : "";
  Severity severity = Severity::warning;
  if (reading.outcome == IntegerOutcome::fractional && fact.type == KeyType::size &&
      std::abs(value.number) < 0x1p53) {
    reading = {IntegerOutcome::exact, static_cast<int64_t>(std::floor(value.number))};
    understood = "rounded down to " + std::to_string(reading.value);
    severity = Severity::note;
  }
  if (reading.outcome != IntegerOutcome::exact || !within(fact.range, static_cast<double>(reading.value))) {
    return std::nullopt;
  }
  return accept(reading.value, std::move(understood), severity);
}

std::optional<ValueCheck> check_number(const KeyFact& fact, const Value& value) {
  if (fact.accepts_true && value.kind == ValueKind::boolean && value.boolean) {
    return accept(1.0, "taken as 1: write the number");
  }
  if (value.kind != ValueKind::number || is_lost(value) || !within(fact.range, value.number)) {
    return std::nullopt;
  }
  return accept(value.number);
}

std::optional<ValueCheck> check_numbers(const KeyFact& fact, const Value& value) {
  if (value.kind != ValueKind::array) return std::nullopt;
  const bool long_enough = fact.length == 0 || value.items.size() == static_cast<size_t>(fact.length);
  const bool no_group = fact.per_group && value.items.empty();
  if (!long_enough || no_group) return std::nullopt;
  std::vector<double> numbers;
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    const Value& item = value.items[i];
    const bool whole =
        fact.type != KeyType::integer_list ||
        (item.kind == ValueKind::number && read_integer(item.literal).outcome == IntegerOutcome::exact);
    if (item.kind != ValueKind::number || is_lost(item) || !within(fact.range, item.number) || !whole) {
      ValueCheck check = refuse(fact, item);
      check.item = i;
      check.expected =
          (fact.type == KeyType::integer_list ? "an integer" : "a number") + range_text(fact.range);
      return check;
    }
    numbers.push_back(item.number);
  }
  if (fact.type == KeyType::integer_list) return accept({});
  return accept(std::move(numbers));
}

std::optional<ValueCheck> check_texts(const Value& value) {
  if (value.kind == ValueKind::string) return accept({});
  if (value.kind != ValueKind::array) return std::nullopt;
  const bool texts =
      std::ranges::all_of(value.items, [](const Value& item) { return item.kind == ValueKind::string; });
  return texts ? std::optional(accept({})) : std::nullopt;
}

std::optional<ValueCheck> check_by_type(const KeyFact& fact, const Value& value) {
  switch (fact.type) {
    case KeyType::boolean:
      return check_boolean(value);
    case KeyType::integer:
    case KeyType::size:
      return check_integer(fact, value);
    case KeyType::number:
      if (fact.per_group && value.kind == ValueKind::array) return check_numbers(fact, value);
      return check_number(fact, value);
    case KeyType::number_list:
    case KeyType::integer_list:
      return check_numbers(fact, value);
    case KeyType::text_list:
      return check_texts(value);
    case KeyType::text:
      if (value.kind == ValueKind::string) return accept(value.text);
      return std::nullopt;
    case KeyType::choice: {
      if (value.kind != ValueKind::string) return std::nullopt;
      std::string choice = match_choice(fact, value.text);
      return choice.empty() ? std::nullopt : std::optional(accept(std::move(choice)));
    }
    case KeyType::section:
    case KeyType::object:
      if (value.kind == ValueKind::object) return accept({});
      return std::nullopt;
    case KeyType::anything:
      return accept({});
  }
  return std::nullopt;
}

/// The argument as the Value that a file with it would give.
Value value_of(const Arguments::mapped_type& argument) {
  const auto number_value = [](double number) {
    Value value;
    value.kind = ValueKind::number;
    value.number = number;
    value.literal = to_json(number);
    return value;
  };
  if (const bool* flag = std::get_if<bool>(&argument)) {
    Value value;
    value.kind = ValueKind::boolean;
    value.boolean = *flag;
    value.literal = to_json(*flag);
    return value;
  }
  if (const int64_t* integer = std::get_if<int64_t>(&argument)) {
    Value value = number_value(static_cast<double>(*integer));
    value.literal = to_json(*integer);
    return value;
  }
  if (const double* number = std::get_if<double>(&argument)) return number_value(*number);
  Value value;
  value.kind = ValueKind::array;
  for (const double item : std::get<std::vector<double>>(argument)) value.items.push_back(number_value(item));
  return value;
}

}  // namespace

ValueCheck check_value(const KeyFact& fact, const Value& value) {
  ValueCheck special;
  if (value.kind == ValueKind::null && fact.nullable) {
    special.fit = Fit::nothing;
    return special;
  }
  if (value.kind == ValueKind::boolean && !value.boolean && !fact.false_means.empty()) {
    special.fit = Fit::nothing;
    special.understood = "taken as " + std::string(fact.false_means) + ": write that, or leave the key out";
    special.severity = Severity::warning;
    return special;
  }
  if (is_text(value, "auto") && fact.automatic != Automatic::nobody) {
    special.fit = Fit::automatic;
    return special;
  }
  if (auto check = check_by_type(fact, value)) return *std::move(check);
  return refuse(fact, value);
}

ValueCheck check_argument(const KeyFact& fact, const Arguments::mapped_type& argument) {
  const auto* number = std::get_if<double>(&argument);
  if (number && !std::isfinite(*number)) {
    ValueCheck check;
    check.expected = expected_of(fact);
    check.found = std::isnan(*number) ? "NaN" : "infinity";
    check.remedy = "give a finite number";
    return check;
  }
  return check_value(fact, value_of(argument));
}

std::string expected_of(const KeyFact& fact) {
  const std::string list = fact.length == 2 ? "an array of two" : "an array of";
  const std::string each = range_text(fact.range).empty() ? "" : ", each" + range_text(fact.range);
  switch (fact.type) {
    case KeyType::section:
    case KeyType::object:
      return "an object";
    case KeyType::integer:
    case KeyType::size:
      return "an integer" + range_text(fact.range);
    case KeyType::number:
      return "a number" + range_text(fact.range) + (fact.per_group ? ", or an array of such numbers" : "");
    case KeyType::boolean:
      return "true or false";
    case KeyType::choice:
      return in_words(offered_choices(fact));
    case KeyType::number_list:
      return list + " numbers" + each;
    case KeyType::integer_list:
      return list + " integers" + each;
    case KeyType::text_list:
      return "an array of texts";
    case KeyType::text:
      return "a text in double quotes";
    case KeyType::anything:
      break;
  }
  return "any value";
}

std::string advice_of(const KeyFact& fact) {
  if (!fact.advice.empty()) return std::string(fact.advice);
  switch (fact.type) {
    case KeyType::boolean:
      return "write true or false, or leave the key out";
    case KeyType::section:
    case KeyType::object:
      return "write an object in braces, or leave the key out";
    case KeyType::choice:
      return "write one of them, or leave the key out";
    case KeyType::text:
    case KeyType::text_list:
      return "put it in double quotes, or leave the key out";
    case KeyType::number_list:
    case KeyType::integer_list:
      return "write such an array, or leave the key out";
    default:
      return "write such a number, or leave the key out";
  }
}

std::string match_choice(const KeyFact& fact, std::string_view text) {
  std::string match;
  for_each_word(fact.choices, [&](std::string_view choice) {
    const bool any_case = has_word(fact.any_case, choice);
    if (any_case ? same_in_any_case(choice, text) : choice == text) match = choice;
  });
  return match;
}

}  // namespace zerorun
