#include "config/key_words.h"

#include <cctype>
#include <vector>

#include "base/error.h"
#include "config/key_table.h"

namespace zerorun {

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

std::string status_in_words(const KeyFact& fact, std::string_view quote) {
  switch (fact.status) {
    case KeyStatus::supported:
      return {};
    case KeyStatus::no_effect:
      return "no effect: " + std::string(fact.reason);
    case KeyStatus::not_offered:
      return (fact.changes_result ? "not offered, a run refuses it: " : "not offered: ") +
             std::string(fact.reason);
    case KeyStatus::old_name:
      return (find_key(fact.target)->type == fact.type ? "old name of " : "old form of ") +
             words_or(fact.target, quote);
    case KeyStatus::replaced:
      return "replaced: " + std::string(fact.reason);
  }
  return {};
}

std::string switch_in_words(const KeyFact& fact, std::string_view quote) {
  if (fact.switch_key.empty()) return {};
  const std::string name = std::string(quote) + std::string(fact.switch_key) + std::string(quote);
  if (fact.type == KeyType::object) return "an " + name + " in it is true";
  const KeyFact* row = find_key(join_path(fact.path, fact.switch_key));
  ZR_CHECK(row, "no row for the switch of " + std::string(fact.path));
  return name + (row->type == KeyType::boolean ? " is true" : " is other than " + std::string(row->fallback));
}

std::string offered_choices(const KeyFact& fact) {
  std::string offered;
  for_each_word(fact.choices, [&](std::string_view word) {
    if (!has_word(fact.choices_to_come, word)) offered += (offered.empty() ? "" : " ") + std::string(word);
  });
  return offered;
}

std::string_view nearest_offered(const KeyFact& fact, std::string_view word) {
  // The replacement may not be offered either, and have a replacement itself.
  while (has_word(fact.choices_to_come, word)) {
    std::string_view nearest;
    for_each_word(fact.nearest_choices, [&](std::string_view pair) {
      const auto colon = pair.find(':');
      if (pair.substr(0, colon) == word) nearest = pair.substr(colon + 1);
    });
    word = nearest;
  }
  return word;
}

}  // namespace zerorun
