// Where the elements of a saved part of a parameter lie in a reader's part, whose tensor ranks may divide the
// parameter otherwise, and whose elements may lie in another order. Plain values; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "checkpoint/saved_parameter.h"

namespace zerorun::checkpoint {

/// Elements in rows, which lie in equal distances on both sides. A part counts its elements in memory order.
struct ElementRows {
  std::array<int64_t, 2> sizes;  // rows, and elements of a row
  int64_t from;                  // the first element in the saved part
  int64_t to;                    // and in the reader's
  std::array<int64_t, 2> from_strides;
  std::array<int64_t, 2> to_strides;
};

/// Elements `begin` to `end` - 1 of a part.
struct ElementRange {
  int64_t begin;
  int64_t end;
};

class PartMap {
 public:
  /// Maps part `saved_part` of `saved` to part `own_part` of `own`, the same parameter with other strides or
  /// another split. Both are without gaps in memory. A part is a tensor rank, or kWhole.
  PartMap(const SavedParameter& saved, int saved_part, const SavedParameter& own, int own_part);

  /// Calls visit(rows) for the elements that lie in both ranges. Takes a time that grows with the rows in
  /// `from`, and no memory that grows with them.
  void visit(ElementRange from, ElementRange to, const std::function<void(const ElementRows&)>& visit) const;
  /// Whether the parts have no element in common.
  bool empty() const { return boxes_.empty(); }

 private:
  struct Dim {
    int64_t size;
    int64_t from_stride;
    int64_t to_stride;
    int64_t from_rest = 0;  // from the first to the last element of all dimensions behind this one
    int64_t to_rest = 0;
  };
  // Elements that both parts have: without the dimensions of size 1, in the order of the saved part.
  struct Box {
    int64_t from = 0;
    int64_t to = 0;
    std::vector<Dim> dims;
  };
  class Walk;

  std::vector<Box> boxes_;
};

}  // namespace zerorun::checkpoint
