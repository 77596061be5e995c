// The values of a pickle in memory: nodes that refer to each other by index. Written while the pickle is
// read, then only read.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/error.h"
#include "convert/pickle.h"

namespace zerorun::convert {

/// No node.
inline constexpr uint32_t kNoNode = 0xffffffff;

struct PickleNode {
  PickleKind kind = PickleKind::none;
  union {
    bool boolean;
    int64_t integer = 0;
    double real;
  };
  std::string text;
  std::vector<uint32_t> items;
  uint32_t callee = kNoNode;
  uint32_t arguments = kNoNode;
  uint32_t state = kNoNode;
};

class PickleArena {
 public:
  size_t size() const { return nodes_.size(); }
  uint32_t add(PickleKind kind) {
    nodes_.push_back({});
    nodes_.back().kind = kind;
    return static_cast<uint32_t>(nodes_.size() - 1);
  }
  PickleNode& at(uint32_t index) { return nodes_[index]; }
  const PickleNode& at(uint32_t index) const { return nodes_[index]; }
  const PickleNode& of_kind(uint32_t index, PickleKind kind) const {
    ZR_CHECK(nodes_[index].kind == kind, "a pickled value of another kind");
    return nodes_[index];
  }

 private:
  std::deque<PickleNode> nodes_;  // a deque, because it grows without copying nodes
};

}  // namespace zerorun::convert
