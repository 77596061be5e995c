#include "config/value_check.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>

#include "config/key_words.h"
#include "config/number.h"
#include "config/suggestion.h"

namespace zerorun::config {
namespace {

bool within(const ValueRange& range, double value) {
  return value >= range.min && (range.below_max ? value < range.max : value <= range.max);
}

/// Returns the range as a phrase that follows a noun: " of at least 1", " from 0 to 3".
std::string range_phrase(const ValueRange& range) {
  const std::string words = range_in_words(range);
  if (words.empty()) return {};
  if (range.min == range.max) return " that is " + words.substr(0, words.find(' '));
  return (words.starts_with("at ") ? " of " : " ") + words;
}

bool is_text(const Value& value, std::string_view text) {
  return value.kind == ValueKind::string && value.text == text;
}

/// Whether a tiny nonzero number in the file became 0 as a double.
bool is_lost(const Value& value) {
  return value.kind == ValueKind::number && value.number == 0.0 && !is_written_zero(value.literal);
}

std::string found_of(const KeyFact& fact, const Value& value) {
  if (fact.type == KeyType::number && is_lost(value)) return describe(value) + ", too small for a double";
  const bool too_large = fact.is_integer() && value.kind == ValueKind::number &&
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
  return {.expected = expected_of(fact), .found = found_of(fact, value), .remedy = remedy_of(fact, value)};
}

ValueCheck accept(SettingValue value, std::string understood = {}, Severity severity = Severity::warning) {
  return {.fit = Fit::value,
          .value = std::move(value),
          .understood = std::move(understood),
          .severity = severity};
}

std::optional<ValueCheck> check_boolean(const Value& value) {
  if (value.kind == ValueKind::boolean) return accept(value.boolean);
  if (value.kind == ValueKind::number) {  // as DeepSpeed takes them; another number is a mistake
    const IntegerReading reading = read_integer(value.literal);
    const bool is_bit =
        reading.outcome == IntegerOutcome::exact && (reading.value == 0 || reading.value == 1);
    if (!is_bit) return std::nullopt;
    const std::string meant = reading.value == 1 ? "true" : "false";
    return accept(reading.value == 1, "taken as " + meant + ": write " + meant);
  }
  if (!is_text(value, "true") && !is_text(value, "false")) return std::nullopt;
  return accept(value.text == "true", "taken as " + value.text + ": write it without the quotes");
}

std::optional<ValueCheck> check_integer(const KeyFact& fact, const Value& value) {
  const bool digits = value.kind == ValueKind::string && is_number(value.text) &&
                      value.text.find_first_not_of("0123456789") == std::string::npos;
  if (value.kind != ValueKind::number && !digits) return std::nullopt;
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

bool fits_number(const KeyFact& fact, const Value& value) {
  return value.kind == ValueKind::number && !is_lost(value) && within(fact.range, value.number);
}

std::optional<ValueCheck> check_number(const KeyFact& fact, const Value& value) {
  if (fact.accepts_true && value.kind == ValueKind::boolean && value.boolean) {
    return accept(1.0, "taken as 1: write the number");
  }
  return fits_number(fact, value) ? std::optional(accept(value.number)) : std::nullopt;
}

std::optional<ValueCheck> check_numbers(const KeyFact& fact, const Value& value) {
  if (value.kind != ValueKind::array) return std::nullopt;
  const bool long_enough = fact.length == 0 || value.items.size() == static_cast<size_t>(fact.length);
  const bool no_group = fact.per_group && value.items.empty();
  if (!long_enough || no_group) return std::nullopt;
  std::vector<double> numbers;
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    const Value& item = value.items[i];
    if (!fits_number(fact, item)) {
      ValueCheck check = refuse(fact, item);
      check.item = i;
      check.expected = "a number" + range_phrase(fact.range);
      return check;
    }
    numbers.push_back(item.number);
  }
  return accept(std::move(numbers));
}

std::optional<ValueCheck> check_texts(const Value& value) {
  const auto is_string = [](const Value& item) { return item.kind == ValueKind::string; };
  if (is_string(value)) return accept(std::vector{value.text});
  if (value.kind != ValueKind::array || !std::ranges::all_of(value.items, is_string)) return std::nullopt;
  std::vector<std::string> texts;
  for (const Value& item : value.items) texts.push_back(item.text);
  return accept(std::move(texts));
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
      return check_numbers(fact, value);
    case KeyType::text:
      return value.kind == ValueKind::string ? std::optional(accept(value.text)) : std::nullopt;
    case KeyType::choice: {
      std::string choice = value.kind == ValueKind::string ? match_choice(fact, value.text) : "";
      return choice.empty() ? std::nullopt : std::optional(accept(std::move(choice)));
    }
    case KeyType::text_list:
      return check_texts(value);
    default: {  // its values are not kept in settings
      const bool fits = fact.type == KeyType::anything || value.kind == ValueKind::object;
      return fits ? std::optional(accept({})) : std::nullopt;
    }
  }
}

}  // namespace

ValueCheck check_value(const KeyFact& fact, const Value& value) {
  if (value.kind == ValueKind::null && fact.nullable) return {.fit = Fit::nothing};
  if (value.kind == ValueKind::boolean && !value.boolean && !fact.false_means.empty()) {
    return {.fit = Fit::nothing,
            .understood = "taken as " + std::string(fact.false_means) + ": write that, or leave the key out",
            .severity = Severity::warning};
  }
  if (is_text(value, "auto") && fact.automatic != Automatic::nobody) return {.fit = Fit::automatic};
  if (auto check = check_by_type(fact, value)) return *std::move(check);
  return refuse(fact, value);
}

ValueCheck check_argument(const KeyFact& fact, const Arguments::mapped_type& argument) {
  const auto* number = std::get_if<double>(&argument);
  if (number && !std::isfinite(*number)) {
    return {.expected = expected_of(fact),
            .found = std::isnan(*number) ? "NaN" : "infinity",
            .remedy = "give a finite number"};
  }
  const std::string text = std::visit([](const auto& held) { return to_json(held); }, argument);
  Diagnostics diagnostics("argument", text);
  const auto document = read_document("{\"value\": " + text + "}", diagnostics);
  if (document) return check_value(fact, document->members.front().value);
  // A list with a number that is not finite has no JSON form. So an empty list is checked instead: no key
  // that may be "auto" accepts it.
  Value empty;
  empty.kind = ValueKind::array;
  return check_value(fact, empty);
}

std::string expected_of(const KeyFact& fact) {
  if (fact.type == KeyType::choice) return in_words(supported_choices(fact));
  const std::string words(words_of(fact.type).expected);
  if (fact.type != KeyType::number_list) {
    return words + range_phrase(fact.range) + (fact.per_group ? ", or an array of such numbers" : "");
  }
  const std::string each = range_phrase(fact.range).empty() ? "" : ", each" + range_phrase(fact.range);
  return (fact.length == 2 ? "an array of two " : "an array of ") + words + each;
}

std::string advice_of(const KeyFact& fact) {
  if (!fact.advice.empty()) return std::string(fact.advice);
  const bool default_helps = fact.type == KeyType::size && !fact.fallback.empty();
  return std::string(words_of(fact.type).advice) +
         (default_helps ? " for " + std::string(fact.fallback) : "");
}

std::string match_choice(const KeyFact& fact, std::string_view text) {
  const auto same_in_any_case = [](unsigned char a, unsigned char b) {
    return std::tolower(a) == std::tolower(b);
  };
  std::string match;
  for_each_word(fact.choices, [&](std::string_view choice) {
    const bool any_case = has_word(fact.any_case, choice);
    if (any_case ? std::ranges::equal(choice, text, same_in_any_case) : choice == text) match = choice;
  });
  return match;
}

}  // namespace zerorun::config
