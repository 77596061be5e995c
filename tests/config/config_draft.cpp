#include "config_draft.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "config/key_table.h"

namespace zerorun::test {
using namespace config;
namespace {

std::string number_literal(double value) {
  std::ostringstream text;
  text.precision(17);
  text << value;
  return text.str();
}

/// Adds the ends of the key's range and their neighbours: as numbers, in quotes, and in arrays.
void add_boundaries(const KeyFact& fact, Literals& literals) {
  for (const double end : {fact.range.min, fact.range.max}) {
    if (!std::isfinite(end)) continue;
    for (const double offset : {-1.0, -0.25, 0.0, 0.25, 1.0}) {
      const std::string number = number_literal(end + offset);
      literals.push_back(number);
      literals.push_back("\"" + number + "\"");
      literals.push_back("[" + number + "]");
      literals.push_back("[0.5, " + number + "]");
    }
  }
}

void add_choices(const KeyFact& fact, Literals& literals) {
  for_each_word(fact.choices, [&](std::string_view word) {
    literals.push_back(quoted_literal(word));
    literals.push_back(quoted_literal(with_case(word, std::toupper)));
    literals.push_back(quoted_literal(with_case(word, std::tolower)));
    literals.push_back(quoted_literal(std::string(word) + " "));
    literals.push_back(quoted_literal(word.substr(1)));
  });
}

}  // namespace

Draft& Draft::put(const Path& path, std::string literal) {
  Node* node = &root_;
  for (const std::string& name : path) {
    node->literal.clear();
    node = &node->member(name);
  }
  node->members.clear();
  node->literal = std::move(literal);
  return *this;
}

std::string Draft::text() const {
  std::string text;
  root_.write(text);
  return text;
}

Draft::Node& Draft::Node::member(const std::string& name) {
  const auto found = std::ranges::find(members, name, &Member::name);
  if (found != members.end()) return found->node;
  members.push_back({name, Node()});
  return members.back().node;
}

void Draft::Node::write(std::string& text) const {
  if (!literal.empty()) {
    text += literal;
    return;
  }
  text += '{';
  for (const auto& [name, node] : members) {
    if (text.back() != '{') text += ", ";
    text += quoted_literal(name) + ": ";
    node.write(text);
  }
  text += '}';
}

const Literals& common_literals() {
  static const Literals literals = [] {
    Literals words;
    for (const std::string_view list : {
             R"(null true false 0 1 -1 2 2.0 5e8 0.5 -0.5 1e-3 15099494.4 1e19 -1e19)",
             R"("" "8" "0" "-1" "08" "2.0" "5e8" "0.5" "true" "false" "True" "auto" "Auto" "none" "text")",
             R"([] [1] [0.5,0.75] [0,1] [2.0,3] [0.5,0.5,0.5] ["a","b"] ["0.9","0.999"] [null] [[1]])",
             R"({} {"a":1} {"enabled":true} {"a.b":{"":[]}})",
         }) {
      for_each_word(list, [&](std::string_view word) { words.emplace_back(word); });
    }
    return words;
  }();
  return literals;
}

std::string quoted_literal(std::string_view text) {
  return nlohmann::json(text).dump();
}

std::string with_case(std::string_view word, int (*change)(int)) {
  std::string result;
  for (const unsigned char c : word) result += static_cast<char>(change(c));
  return result;
}

Literals literals_for(const KeyFact& fact) {
  Literals literals = common_literals();
  const Literals likely = likely_literals(fact);
  literals.insert(literals.end(), likely.begin(), likely.end());
  add_boundaries(fact, literals);
  add_choices(fact, literals);
  return literals;
}

Literals likely_literals(const KeyFact& fact) {
  Literals literals;
  if (!fact.fallback.empty()) literals.emplace_back(fact.fallback);
  if (fact.automatic != Automatic::nobody) literals.emplace_back(R"("auto")");
  if (fact.nullable) literals.emplace_back("null");
  for_each_word(fact.choices, [&](std::string_view word) { literals.push_back(quoted_literal(word)); });
  switch (fact.type) {
    case KeyType::integer:
    case KeyType::size:
      for (const char* literal : {"1", "2.0", "8", "5e8", "\"8\""}) literals.emplace_back(literal);
      break;
    case KeyType::number:
      for (const char* literal : {"0.5", "1", "1e-3"}) literals.emplace_back(literal);
      if (fact.per_group) literals.emplace_back("[0.5, 0.75, 0.25]");
      break;
    case KeyType::boolean:
      for (const char* literal : {"true", "false", "\"true\""}) literals.emplace_back(literal);
      break;
    case KeyType::number_list:
      literals.emplace_back("[0.5, 0.75]");
      break;
    case KeyType::text:
      literals.emplace_back(R"("a text")");
      break;
    case KeyType::text_list:
      literals.emplace_back(R"(["a", "b"])");
      break;
    case KeyType::object:
    case KeyType::section:
      literals.emplace_back("{}");
      break;
    case KeyType::choice:
    case KeyType::anything:
      break;
  }
  if (literals.empty()) literals.emplace_back("0");
  return literals;
}

}  // namespace zerorun::test
