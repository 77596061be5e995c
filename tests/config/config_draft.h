// A configuration that is built key by key, and values worth trying at a key. For tests only, in one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/key_fact.h"

namespace zerorun::test {

/// A JSON document that is built key by key.
class Draft {
 public:
  using Path = std::vector<std::string>;

  /// Sets the value at `path` and makes the objects around it. Replaces a value where an object is needed.
  Draft& put(const Path& path, std::string literal);
  std::string text() const;

 private:
  struct Member;
  struct Node {
    std::string literal;  // empty: an object
    std::vector<Member> members;

    Node& member(const std::string& name);
    void write(std::string& text) const;
  };

  struct Member {
    std::string name;
    Node node;
  };

  Node root_;
};

/// Values as written in a file.
using Literals = std::vector<std::string>;

/// Every kind of JSON value, the spellings that some keys accept, and near misses.
const Literals& common_literals();

/// The common and the likely literals, the ends of the key's range and their neighbours, and its choices in
/// several spellings.
Literals literals_for(const KeyFact& fact);

/// Values of the kind that the row names, so that some configurations of many keys are valid.
Literals likely_literals(const KeyFact& fact);

std::string quoted_literal(std::string_view text);

std::string with_case(std::string_view word, int (*change)(int));

}  // namespace zerorun::test
