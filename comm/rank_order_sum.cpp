#include "comm/rank_order_sum.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/narrow_floats.h"
#include "base/timeline.h"
#include "comm/nontemporal.h"
#include "device/dtypes.h"

namespace zerorun {
namespace {

// Elements per block. The running sum of a block stays in the L1 cache while the ranks' slices stream through
// it.
constexpr int64_t kBlock = 2048;

// `output` either equals `a` or `b`, or overlaps neither. So the loop may be vectorized (ivdep).
template <typename T>
void add(T* output, const T* a, const T* b, int64_t length) {
  constexpr int64_t kChunk = 256 / sizeof(T);
  auto add_part = [&](int64_t begin, int64_t end) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) output[i] = a[i] + b[i];
  };
  int64_t begin = 0;
  for (; begin + kChunk <= length; begin += kChunk) {
    ask_ahead(a + begin, kChunk * sizeof(T));
    ask_ahead(b + begin, kChunk * sizeof(T));
    add_part(begin, begin + kChunk);
  }
  add_part(begin, length);
}

template <typename T>
void sum(T* output, int64_t numel, std::span<const void* const> slices) {
  const size_t last = slices.size() - 1;
  if (last == 0) {
    if (slices[0] != output) std::copy_n(static_cast<const T*>(slices[0]), numel, output);
    return;
  }
  std::array<T, kBlock> total;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t length = std::min(kBlock, numel - begin);
    const T* so_far = static_cast<const T*>(slices[0]) + begin;
    for (size_t rank = 1; rank <= last; ++rank) {
      add(rank < last ? total.data() : output + begin, so_far, static_cast<const T*>(slices[rank]) + begin,
          length);
      so_far = total.data();
    }
  }
}

// Sums with stores that bypass the caches. Used for outputs that are too large to stay in a cache.
template <typename T>
void nontemporal_sum(T* output, int64_t numel, std::span<const void* const> slices) {
  constexpr int64_t kChunk = 64;
  constexpr size_t kBytes = kChunk * sizeof(T);
  const size_t last = slices.size() - 1;
  std::array<T, kChunk> total;
  const int64_t whole = numel / kChunk * kChunk;
  for (int64_t begin = 0; begin < whole; begin += kChunk) {
    const T* so_far = static_cast<const T*>(slices[0]) + begin;
    ask_ahead(so_far, kBytes);
    for (size_t rank = 1; rank <= last; ++rank) {
      const T* slice = static_cast<const T*>(slices[rank]) + begin;
      ask_ahead(slice, kBytes);
      if (rank == last) {
        nontemporal_add(output + begin, so_far, slice, kChunk);
      } else {
        add(total.data(), so_far, slice, kChunk);
      }
      so_far = total.data();
    }
  }
  nontemporal_fence();
  for (int64_t i = whole; i < numel; ++i) {
    T value = static_cast<const T*>(slices[0])[i];
    for (size_t rank = 1; rank < slices.size(); ++rank) value += static_cast<const T*>(slices[rank])[i];
    output[i] = value;
  }
}

template <typename T>
void sum_groups(T* output, int64_t numel, std::span<const void* const> slices, std::span<const int> groups) {
  std::array<T, kBlock> total;
  std::array<T, kBlock> of_group;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t length = std::min(kBlock, numel - begin);
    size_t rank = 0;
    for (const int ranks : groups) {
      const bool is_first = rank == 0;
      const T* so_far = static_cast<const T*>(slices[rank++]) + begin;
      for (int other = 1; other < ranks; ++other) {
        add(of_group.data(), so_far, static_cast<const T*>(slices[rank++]) + begin, length);
        so_far = of_group.data();
      }
      if (is_first) {
        std::copy_n(so_far, length, total.data());
      } else {
        add(total.data(), static_cast<const T*>(total.data()), so_far, length);
      }
    }
    std::copy_n(total.data(), length, output + begin);
  }
}

template <typename T>
void sum_plain(const at::Tensor& output, std::span<const void* const> slices, std::span<const int> groups) {
  T* values = output.mutable_data_ptr<T>();
  if (groups.size() > 1) return sum_groups(values, output.numel(), slices, groups);
  // Non-temporal stores are faster only if the output is not also an input, because an input is already in
  // the cache.
  const bool apart = std::ranges::find(slices, static_cast<const void*>(values)) == slices.end();
  if (apart && slices.size() > 1 && output.nbytes() >= kPastCaches && may_pass_caches(values)) {
    nontemporal_sum(values, output.numel(), slices);
  } else {
    sum(values, output.numel(), slices);
  }
}

// Accumulates in float32 and rounds once at the end, because 16-bit types are too imprecise for the running
// sum.
void sum_narrow(void* output, Dtype dtype, int64_t numel, std::span<const void* const> slices,
                std::span<const int> groups) {
  if (slices.size() == 1 && slices[0] == output) return;
  std::array<float, kBlock> total;
  std::array<float, kBlock> of_group;
  std::array<float, kBlock> addend;
  std::array<uint16_t, kBlock> rounded;
  const auto all = static_cast<int>(slices.size());
  if (groups.empty()) groups = {&all, 1};
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t length = std::min(kBlock, numel - begin);
    const int64_t offset = begin * size_of(dtype);
    size_t rank = 0;
    for (const int ranks : groups) {
      const bool is_first = rank == 0;
      float* sum = is_first ? total.data() : of_group.data();
      widen(static_cast<const char*>(slices[rank++]) + offset, dtype, sum, length);
      for (int other = 1; other < ranks; ++other) {
        widen(static_cast<const char*>(slices[rank++]) + offset, dtype, addend.data(), length);
        for (int64_t i = 0; i < length; ++i) sum[i] += addend[i];
      }
      if (groups.size() > 1) {
        narrow(sum, rounded.data(), dtype, length);
        widen(rounded.data(), dtype, sum, length);
      }
      if (is_first) continue;
      for (int64_t i = 0; i < length; ++i) total[i] += of_group[i];
    }
    narrow(total.data(), static_cast<char*>(output) + offset, dtype, length);
  }
}

}  // namespace

void sum_in_rank_order(const at::Tensor& output, std::span<const void* const> slices,
                       std::span<const int> groups) {
  const TimelineSpan span(TimelineName::sum, -1, static_cast<int64_t>(output.nbytes()));
  switch (output.scalar_type()) {
    case at::kFloat:
      return sum_plain<float>(output, slices, groups);
    case at::kDouble:
      return sum_plain<double>(output, slices, groups);
    case at::kLong:
      return sum_plain<int64_t>(output, slices, groups);
    case at::kBFloat16:
    case at::kHalf:
      return sum_narrow(output.mutable_data_ptr(), dtype_of(output), output.numel(), slices, groups);
    default:
      ZR_CHECK(false, std::string("no sum for dtype ") + c10::toString(output.scalar_type()));
  }
}

}  // namespace zerorun
