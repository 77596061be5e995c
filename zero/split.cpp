#include "zero/split.h"

#include <algorithm>

namespace zerorun {
namespace {

// Calls visit(range of the part, range of the whole).
template <typename Visit>
void for_each_range(const Split& split, int rank, const Visit& visit) {
  int64_t begin = 0;
  for (const Range& range : split.parts[static_cast<size_t>(rank)]) {
    visit(Range{begin, range.numel}, range);
    begin += range.numel;
  }
}

at::Tensor along(const at::Tensor& tensor, const Split& split, Range range) {
  return tensor.narrow(split.dim, range.begin, range.numel);
}

}  // namespace

bool Split::cuts_like(const Split& other) const {
  auto same = [](const Range& a, const Range& b) { return a.begin == b.begin && a.numel == b.numel; };
  return whole == other.whole &&
         std::ranges::equal(parts, other.parts, [&](const auto& mine, const auto& theirs) {
           return std::ranges::equal(mine, theirs, same);
         });
}

int64_t Split::size_of_part(int rank) const {
  int64_t size = 0;
  for (const Range& range : parts[static_cast<size_t>(rank)]) size += range.numel;
  return size;
}

int64_t Split::largest_part() const {
  int64_t largest = 0;
  for (int rank = 0; rank < static_cast<int>(parts.size()); ++rank)
    largest = std::max(largest, size_of_part(rank));
  return largest;
}

std::vector<int64_t> sizes_of_part(at::IntArrayRef sizes, const Split& split, int rank) {
  std::vector<int64_t> result = sizes.vec();
  result[static_cast<size_t>(split.dim)] = split.size_of_part(rank);
  return result;
}

void copy_part(const at::Tensor& part, const at::Tensor& whole, const Split& split, int rank) {
  for_each_range(split, rank, [&](Range of_part, Range of_whole) {
    along(part, split, of_part).copy_(along(whole, split, of_whole));
  });
}

void copy_to_whole(const at::Tensor& whole, const at::Tensor& part, const Split& split, int rank) {
  for_each_range(split, rank, [&](Range of_part, Range of_whole) {
    along(whole, split, of_whole).copy_(along(part, split, of_part));
  });
}

}  // namespace zerorun
