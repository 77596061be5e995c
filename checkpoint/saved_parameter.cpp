#include "checkpoint/saved_parameter.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace zerorun::checkpoint {

std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape, const std::vector<int64_t>& like) {
  std::vector<size_t> from_outer(shape.size());
  std::iota(from_outer.begin(), from_outer.end(), size_t{0});
  std::ranges::stable_sort(from_outer, std::ranges::greater(), [&](size_t dim) { return like[dim]; });
  std::vector<int64_t> strides(shape.size());
  int64_t next = 1;
  for (size_t place = shape.size(); place-- > 0;) {
    const size_t dim = from_outer[place];
    strides[dim] = next;
    next *= std::max<int64_t>(shape[dim], 1);
  }
  return strides;
}

bool same_order(const SavedParameter& a, const SavedParameter& b) {
  if (std::ranges::find(a.shape, 0) != a.shape.end()) return true;
  for (size_t dim = 0; dim < a.shape.size(); ++dim) {
    if (a.shape[dim] != 1 && a.strides.at(dim) != b.strides.at(dim)) return false;
  }
  return true;
}

bool is_dense(const SavedParameter& parameter) {
  SavedParameter dense = parameter;
  dense.strides = dense_strides(parameter.shape, parameter.strides);
  return same_order(parameter, dense);
}

SavedParameter part_of(const SavedParameter& parameter, int part) {
  SavedParameter result = parameter;
  if (!parameter.split || part == -1) return result;
  const SavedSplit& split = *parameter.split;
  int64_t size = 0;
  for (const SavedSplit::Interval& interval : split.parts.at(static_cast<size_t>(part)))
    size += interval.numel;
  result.shape.at(static_cast<size_t>(split.dim)) = size;
  result.strides = dense_strides(result.shape, parameter.strides);
  result.split.reset();
  return result;
}

int64_t numel_of(const SavedParameter& parameter) {
  return std::accumulate(parameter.shape.begin(), parameter.shape.end(), int64_t{1}, std::multiplies<>());
}

std::string describe(const std::optional<SavedSplit>& split) {
  if (!split) return "not";
  std::string text = "along dimension " + std::to_string(split->dim) + " among " +
                     std::to_string(split->parts.size()) + " tensor ranks:";
  const char* before = " ";
  for (const auto& part : split->parts) {
    text += before;
    const char* between = "";
    for (const SavedSplit::Interval& interval : part) {
      text += between + ("[" + std::to_string(interval.begin)) + ", " +
              std::to_string(interval.begin + interval.numel) + ")";
      between = " ";
    }
    before = " | ";
  }
  return text;
}

}  // namespace zerorun::checkpoint
