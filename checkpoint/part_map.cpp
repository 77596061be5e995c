#include "checkpoint/part_map.h"

#include <algorithm>
#include <functional>
#include <optional>

namespace zerorun::checkpoint {
namespace {

// Consecutive indices of a dimension of the whole parameter, and the first of them in the part.
struct Indices {
  int64_t begin;
  int64_t numel;
  int64_t in_part;
};

// What a part has along `dim` of the whole parameter.
std::vector<Indices> indices_of(const SavedParameter& whole, int part, size_t dim) {
  if (!whole.split || part < 0 || static_cast<size_t>(whole.split->dim) != dim)
    return {{0, whole.shape[dim], 0}};
  std::vector<Indices> indices;
  int64_t in_part = 0;
  for (const auto& [begin, numel] : whole.split->parts.at(static_cast<size_t>(part))) {
    indices.push_back({begin, numel, in_part});
    in_part += numel;
  }
  return indices;
}

int64_t ceil_div(int64_t value, int64_t by) {
  return value <= 0 ? -(-value / by) : (value - 1) / by + 1;
}

// The indices i in [0, size) for which an element in [at + i * stride, at + i * stride + rest] may lie in
// `range`.
ElementRange indices_in(ElementRange range, int64_t at, int64_t size, int64_t stride, int64_t rest) {
  return {std::max<int64_t>(0, ceil_div(range.begin - at - rest, stride)),
          std::min(size, ceil_div(range.end - at, stride))};
}

}  // namespace

PartMap::PartMap(const SavedParameter& saved, int saved_part, const SavedParameter& own, int own_part) {
  const std::vector<int64_t> from_strides = part_of(saved, saved_part).strides;
  const std::vector<int64_t> to_strides = part_of(own, own_part).strides;
  boxes_.emplace_back();
  for (size_t dim = 0; dim < saved.shape.size(); ++dim) {
    std::vector<Box> longer;
    for (const Indices& there : indices_of(saved, saved_part, dim)) {
      for (const Indices& here : indices_of(own, own_part, dim)) {
        const int64_t begin = std::max(there.begin, here.begin);
        const int64_t numel = std::min(there.begin + there.numel, here.begin + here.numel) - begin;
        if (numel <= 0) continue;
        for (Box box : boxes_) {
          box.from += (begin - there.begin + there.in_part) * from_strides[dim];
          box.to += (begin - here.begin + here.in_part) * to_strides[dim];
          if (numel > 1) box.dims.push_back({numel, from_strides[dim], to_strides[dim]});
          longer.push_back(std::move(box));
        }
      }
    }
    boxes_ = std::move(longer);
  }
  for (Box& box : boxes_) {
    std::ranges::sort(box.dims, std::greater(), &Dim::from_stride);
    for (size_t dim = box.dims.size(); dim-- > 1;) {
      Dim& outer = box.dims[dim - 1];
      const Dim& inner = box.dims[dim];
      if (outer.from_stride == inner.size * inner.from_stride &&
          outer.to_stride == inner.size * inner.to_stride) {
        outer = {outer.size * inner.size, inner.from_stride, inner.to_stride};
        box.dims.erase(box.dims.begin() + static_cast<std::ptrdiff_t>(dim));
      }
    }
    if (box.dims.empty()) box.dims.push_back({1, 1, 1});
    for (size_t dim = box.dims.size() - 1; dim-- > 0;) {
      const Dim& inner = box.dims[dim + 1];
      box.dims[dim].from_rest = inner.from_rest + (inner.size - 1) * inner.from_stride;
      box.dims[dim].to_rest = inner.to_rest + (inner.size - 1) * inner.to_stride;
    }
  }
}

// Goes through the rows of a box, and joins rows that follow in equal distances.
class PartMap::Walk {
 public:
  Walk(const Box& box, ElementRange from, ElementRange to,
       const std::function<void(const ElementRows&)>& visit)
      : box_(&box), from_(from), to_(to), visit_(&visit) {}

  void run() {
    walk(0, box_->from, box_->to);
    if (rows_) (*visit_)(*rows_);
  }

 private:
  void walk(size_t depth, int64_t from, int64_t to) {
    const Dim& dim = box_->dims[depth];
    const ElementRange a = indices_in(from_, from, dim.size, dim.from_stride, dim.from_rest);
    const ElementRange b = indices_in(to_, to, dim.size, dim.to_stride, dim.to_rest);
    const int64_t begin = std::max(a.begin, b.begin);
    const int64_t end = std::min(a.end, b.end);
    if (begin >= end) return;
    from += begin * dim.from_stride;
    to += begin * dim.to_stride;
    if (depth + 1 == box_->dims.size()) return add(from, to, end - begin);
    for (int64_t index = begin; index < end; ++index) {
      walk(depth + 1, from, to);
      from += dim.from_stride;
      to += dim.to_stride;
    }
  }

  void add(int64_t from, int64_t to, int64_t numel) {
    const Dim& inner = box_->dims.back();
    if (rows_ && rows_->sizes[1] == numel) {
      auto& [sizes, first_from, first_to, from_strides, to_strides] = *rows_;
      if (sizes[0] == 1 && to > first_to) {
        from_strides[0] = from - first_from;
        to_strides[0] = to - first_to;
      }
      if (from == first_from + sizes[0] * from_strides[0] && to == first_to + sizes[0] * to_strides[0]) {
        ++sizes[0];
        return;
      }
    }
    if (rows_) (*visit_)(*rows_);
    rows_ = {.sizes = {1, numel},
             .from = from,
             .to = to,
             .from_strides = {0, inner.from_stride},
             .to_strides = {0, inner.to_stride}};
  }

  const Box* box_;
  ElementRange from_;
  ElementRange to_;
  const std::function<void(const ElementRows&)>* visit_;
  std::optional<ElementRows> rows_;  // not given to visit() yet
};

void PartMap::visit(ElementRange from, ElementRange to,
                    const std::function<void(const ElementRows&)>& visit) const {
  for (const Box& box : boxes_) Walk(box, from, to, visit).run();
}

}  // namespace zerorun::checkpoint
