#include "config/key_words.h"

#include <cctype>
#include <cmath>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "config/key_table.h"

namespace zerorun::config {
namespace {

constexpr std::string_view write_object = "write an object in braces, or leave the key out";
constexpr std::string_view write_number = "write such a number, or leave the key out";
constexpr std::string_view write_text = "put it in double quotes, or leave the key out";
constexpr std::string_view write_list = "write such an array, or leave the key out";

constexpr TypeWords type_words[] = {
    // Indexed by KeyType.
    {"section", "an object", write_object, "object"},
    {"integer", "an integer", write_number, "number"},
    {"size", "an integer", "write a number of elements, or leave the key out", "number"},
    {"number", "a number", write_number, "number"},
    {"true or false", "true or false", "write true or false, or leave the key out", "boolean"},
    {"text", "a text in double quotes", write_text, "string"},
    {"", "", "write one of them, or leave the key out", "string"},
    {"numbers", "numbers", write_list, "array"},
    {"texts", "an array of texts", write_text, "array string"},
    {"object", "an object", write_object, "object"},
    {"anything", "any value", "", ""},
};

template <typename Holds>
std::string words_where(std::string_view list, Holds holds) {
  std::string words;
  for_each_word(list, [&](std::string_view word) {
    if (holds(word)) words += (words.empty() ? "" : " ") + std::string(word);
  });
  return words;
}

std::string number_text(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

const TypeWords& words_of(KeyType type) {
  return type_words[static_cast<std::size_t>(type)];
}

std::string range_in_words(const ValueRange& range) {
  const bool has_min = std::isfinite(range.min);
  const bool has_max = std::isfinite(range.max);
  if (has_min && range.min == range.max) return number_text(range.min) + " only";
  if (has_min && has_max && !range.below_max) {
    return "from " + number_text(range.min) + " to " + number_text(range.max);
  }
  std::string words;
  if (has_min) words = "at least " + number_text(range.min);
  if (has_min && has_max) words += " and ";
  if (has_max) words += (range.below_max ? "less than " : "at most ") + number_text(range.max);
  return words;
}

std::string sentence(std::string_view text) {
  if (text.empty()) return {};
  std::string result(text);
  result.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(result.front())));
  return result + ".";
}

std::string words_or(std::string_view list, std::string_view quote) {
  std::vector<std::string> words;
  for_each_word(list, [&](std::string_view word) {
    words.push_back(std::string(quote) + std::string(word) + std::string(quote));
  });
  std::string result;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) result += i + 1 < words.size() ? ", " : " or ";
    result += words[i];
  }
  return result;
}

std::string reason_of(const KeyFact& fact) {
  return std::string(fact.reason) + (fact.removed ? " (removed from DeepSpeed after 0.19.6)" : "");
}

std::string status_in_words(const KeyFact& fact, std::string_view quote) {
  switch (fact.status) {
    case KeyStatus::supported:
      return {};
    case KeyStatus::no_effect:
      return "no effect: " + reason_of(fact);
    case KeyStatus::not_supported:
      return (fact.changes_result ? "not supported, refused by a run: " : "not supported: ") +
             reason_of(fact);
    case KeyStatus::old_name:
      return (row_of(fact.target).type == fact.type ? "old name of " : "old form of ") +
             words_or(fact.target, quote);
    case KeyStatus::replaced:
      return "replaced: " + std::string(fact.reason);
  }
  return {};
}

std::string switch_in_words(const KeyFact& fact, std::string_view quote) {
  if (fact.switch_key.empty()) return {};
  const std::string name = std::string(quote) + std::string(fact.switch_key) + std::string(quote);
  if (fact.deep_switches) return "an " + name + " in it is true";
  const KeyFact* row = find_key(join_path(fact.path, fact.switch_key));
  const bool is_boolean = !row || row->type == KeyType::boolean;
  return name + (is_boolean ? " is true" : " is other than " + std::string(row->fallback));
}

std::string description_of(const KeyFact& fact, std::string_view quote) {
  std::string text;
  const auto say = [&](std::string_view words) {
    if (!words.empty()) text += (text.empty() ? "" : " ") + sentence(words);
  };
  say(fact.meaning);
  say(status_in_words(fact, quote));
  if (!fact.switch_key.empty()) say("has no effect unless " + switch_in_words(fact, quote));
  if (fact.automatic == Automatic::program) say("\"auto\": the value comes from the program");
  if (fact.automatic == Automatic::model) say("\"auto\": the value follows from the model's hidden size");
  if (fact.automatic == Automatic::fallback) say("\"auto\": the default");
  if (!fact.false_means.empty()) {
    say("may be false, which stands for " + std::string(quote) + std::string(fact.false_means) +
        std::string(quote));
  }
  if (fact.nullable) say("may be null, as if the key were left out");
  if (fact.accepts_true) say("may be true, which stands for 1");
  if (fact.per_group) say("may be an array with one number for each parameter group");
  if (!fact.types.empty()) say("only for " + words_or(fact.types, ""));
  return text;
}

std::string supported_choices(const KeyFact& fact) {
  return words_where(fact.choices, [&](auto word) { return !has_word(fact.unsupported_choices, word); });
}

std::string supported_in_any_case(const KeyFact& fact) {
  return words_where(supported_choices(fact), [&](auto word) { return has_word(fact.any_case, word); });
}

std::string_view nearest_supported(const KeyFact& fact, std::string_view word) {
  // The replacement may itself be a choice that is not supported, with a replacement of its own.
  while (has_word(fact.unsupported_choices, word)) {
    std::string_view nearest;
    for_each_word(fact.nearest_choices, [&](std::string_view pair) {
      const auto colon = pair.find(':');
      if (pair.substr(0, colon) == word) nearest = pair.substr(colon + 1);
    });
    word = nearest;
  }
  return word;
}

}  // namespace zerorun::config
