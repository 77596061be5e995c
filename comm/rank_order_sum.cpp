#include "comm/rank_order_sum.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/narrow_floats.h"
#include "device/dtypes.h"

namespace zerorun {
namespace {

// Small enough that the running sum stays in the first-level cache while the ranks' slices stream past.
constexpr int64_t kBlock = 2048;

template <typename T>
void sum(T* output, int64_t numel, std::span<const void* const> slices) {
  if (slices.size() == 1 && slices[0] == output) return;
  std::array<T, kBlock> total;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t length = std::min(kBlock, numel - begin);
    std::copy_n(static_cast<const T*>(slices[0]) + begin, length, total.data());
    for (size_t rank = 1; rank < slices.size(); ++rank) {
      const T* slice = static_cast<const T*>(slices[rank]) + begin;
      for (int64_t i = 0; i < length; ++i) total[i] += slice[i];
    }
    std::copy_n(total.data(), length, output + begin);
  }
}

// 16 bits are too few for a running sum: it is kept in float32 and rounded once.
void sum_narrow(void* output, Dtype dtype, int64_t numel, std::span<const void* const> slices) {
  if (slices.size() == 1 && slices[0] == output) return;
  std::array<float, kBlock> total;
  std::array<float, kBlock> addend;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t length = std::min(kBlock, numel - begin);
    const int64_t offset = begin * size_of(dtype);
    widen(static_cast<const char*>(slices[0]) + offset, dtype, total.data(), length);
    for (size_t rank = 1; rank < slices.size(); ++rank) {
      widen(static_cast<const char*>(slices[rank]) + offset, dtype, addend.data(), length);
      for (int64_t i = 0; i < length; ++i) total[i] += addend[i];
    }
    narrow(total.data(), static_cast<char*>(output) + offset, dtype, length);
  }
}

}  // namespace

void sum_in_rank_order(const at::Tensor& output, std::span<const void* const> slices) {
  switch (output.scalar_type()) {
    case at::kFloat:
      return sum(output.mutable_data_ptr<float>(), output.numel(), slices);
    case at::kDouble:
      return sum(output.mutable_data_ptr<double>(), output.numel(), slices);
    case at::kLong:
      return sum(output.mutable_data_ptr<int64_t>(), output.numel(), slices);
    case at::kBFloat16:
    case at::kHalf:
      return sum_narrow(output.mutable_data_ptr(), dtype_of(output), output.numel(), slices);
    default:
      ZR_CHECK(false, std::string("no sum for dtype ") + c10::toString(output.scalar_type()));
  }
}

}  // namespace zerorun
