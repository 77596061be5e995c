// A configuration that is put together key by key, and the values that are worth a try at a key. Used by
// tests only, in one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/key_fact.h"

namespace zerorun::test {

/// A JSON document that is put together key by key.
class Draft {
 public:
  using Path = std::vector<std::string>;

  /// Sets the value at `path`, with the objects around it. A value that stands where an object is needed
  /// gives way.
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

/// Values as they stand in a file.
using Literals = std::vector<std::string>;

/// Every kind of JSON value, the spellings that some keys take, and the near misses.
const Literals& common_literals();

/// Those and the likely ones, the ends of the key's range and what lies next to them, and its choices spelled
/// in some ways.
Literals literals_for(const KeyFact& fact);

/// Values of the kind that the row names, so that configurations of many keys are valid now and then.
Literals likely_literals(const KeyFact& fact);

std::string quoted_literal(std::string_view text);

std::string with_case(std::string_view word, int (*change)(int));

}  // namespace zerorun::test
