// Builds a configuration key by key, and lists values to try at a key. For tests only, in one thread.
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

  /// Sets the value at `path`. Creates missing objects on the path, and replaces a value on the path by an
  /// object.
  Draft& put(const Path& path, std::string literal);
  std::string text() const;

 private:
  struct Member;
  struct Node {
    std::string literal;  // empty: the node is an object
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

/// Values as JSON text.
using Literals = std::vector<std::string>;

/// Returns values of every JSON kind, spellings that only some keys accept, and near misses.
const Literals& common_literals();

/// Returns the common and the likely literals, the ends of the key's range and their neighbours, and the
/// key's choices in several spellings.
Literals literals_for(const config::KeyFact& fact);

/// Returns values of the key's type. They make it likely that a configuration of many keys is valid.
Literals likely_literals(const config::KeyFact& fact);

std::string quoted_literal(std::string_view text);

std::string with_case(std::string_view word, int (*change)(int));

}  // namespace zerorun::test
