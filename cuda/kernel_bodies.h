// The work of one kernel thread, as plain functions of the thread's index and the thread count. kernels.cu
// calls them in kernels; a test on the host calls them thread by thread and compares with
// device/cpu_device.h.
//
// The arithmetic on each element is the same as on the CPU, so results have the same bits, with two
// exceptions: the bit pattern of a computed NaN, and sums by add_squares, which adds float64 numbers in
// another order. Each thread reports the smallest number of its own values that are not finite, and a slot
// keeps the smallest reported number ([Note: finite checks] in device/step_facts.h). So the final report is
// the same as on the CPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "base/dtype.h"
#include "cuda/values.h"
#include "device/step_facts.h"

namespace zerorun::cuda {

/// A thread's index in its kernel, and the number of threads in the kernel.
struct Thread {
  int64_t index;
  int64_t count;
};

/// How a kernel accesses an array: a head of single elements, then aligned groups with one wide access per
/// group, then single elements.
struct Division {
  int64_t numel;
  int64_t head;    // number of single elements before the first group
  int64_t groups;  // number of groups
};

/// The start of an array, and the size of its elements in bytes.
struct Array {
  const void* memory;
  int64_t element;
};

/// Finds groups of `width` elements that are aligned in all arrays; an array with null memory is ignored. If
/// the groups cannot be aligned in all arrays at once, all elements are single ones.
inline Division divide(int64_t numel, int width, std::initializer_list<Array> arrays) {
  auto aligned = [&](int64_t head) {
    for (const Array& array : arrays) {
      if (array.memory == nullptr) continue;
      const auto place =
          reinterpret_cast<uintptr_t>(array.memory) + static_cast<uintptr_t>(head * array.element);
      const int64_t group = array.element * width;
      if (place % static_cast<uintptr_t>(group < kAccess ? group : kAccess) != 0) return false;
    }
    return true;
  };
  for (int64_t head = 0; head < width && head + width <= numel; ++head) {
    if (aligned(head)) return {numel, head, (numel - head) / width};
  }
  return {numel, 0, 0};
}

/// Processes all elements of `thread`. Body::kWidth is the number of elements per group. take<N>(index) loads
/// N elements, and give<N>(index, taken) computes and stores the results. run() calls take() for `kAhead`
/// groups before the first give(), to keep that many loads in flight.
template <typename Body>
ZERORUN_HOST_DEVICE void run(Body& body, const Division& division, const Thread& thread) {
  constexpr int kWidth = Body::kWidth;
  using Taken = decltype(body.template take<kWidth>(0));
  for (int64_t first = thread.index; first < division.groups; first += Body::kAhead * thread.count) {
    Taken taken[Body::kAhead] = {};
    ZERORUN_UNROLL
    for (int i = 0; i < Body::kAhead; ++i) {
      const int64_t group = first + i * thread.count;
      if (group < division.groups) taken[i] = body.template take<kWidth>(division.head + group * kWidth);
    }
    ZERORUN_UNROLL
    for (int i = 0; i < Body::kAhead; ++i) {
      const int64_t group = first + i * thread.count;
      if (group < division.groups) body.template give<kWidth>(division.head + group * kWidth, taken[i]);
    }
  }
  const int64_t grouped = division.groups * kWidth;
  for (int64_t i = thread.index; i < division.numel - grouped; i += thread.count) {
    const int64_t index = i < division.head ? i : i + grouped;
    body.template give<1>(index, body.template take<1>(index));
  }
}

ZERORUN_HOST_DEVICE void keep_larger(uint64_t& slot, uint64_t other) {
  if (other > slot) slot = other;
}

/// The number of elements that fit in one access, for the larger of the two types.
template <typename A, typename B>
inline constexpr int kWidthOf = kAccess / static_cast<int>(sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));

/// to = from * factor.
template <typename To, typename From>
struct CopyScaled {
  static constexpr int kWidth = kWidthOf<To, From>;
  static constexpr int kAhead = 2;
  To* to;
  const From* from;
  float factor;
  int64_t number;     // FiniteCheck::number
  uint64_t slot = 0;  // this thread's slot ([Note: finite checks])

  Division division(int64_t numel) const {
    return divide(numel, kWidth, {{to, sizeof(To)}, {from, sizeof(From)}});
  }

  template <int N>
  ZERORUN_HOST_DEVICE Group<From, N> take(int64_t index) const {
    return load<N>(from + index);
  }

  template <int N>
  ZERORUN_HOST_DEVICE void give(int64_t index, const Group<From, N>& taken) {
    Group<To, N> result;
    bool finite = true;
    ZERORUN_UNROLL
    for (int i = 0; i < N; ++i) {
      const float value = widen(taken.values[i]) * factor;
      finite &= stays_finite<To>(value);
      result.values[i] = narrow<To>(value);
    }
    if constexpr (kSameNarrow) {
      if (factor == 1) result = taken;  // copies the bits, because rounding would change those of a NaN
    }
    store<N>(to + index, result);
    if (!finite) find(taken);
  }

 private:
  static constexpr bool kSameNarrow = std::is_same_v<To, From> && sizeof(To) == 2;

  template <int N>
  ZERORUN_HOST_DEVICE void find(const Group<From, N>& taken) {
    ZERORUN_UNROLL
    for (int i = 0; i < N; ++i) {
      const float value = widen(taken.values[i]);
      if (!stays_finite<To>(value * factor)) keep_larger(slot, slot_of(number + stays_finite<float>(value)));
    }
  }
};

/// to += from * factor.
template <typename To, typename From>
struct AddScaled {
  static constexpr int kWidth = kWidthOf<To, From>;
  static constexpr int kAhead = 2;
  To* to;
  const From* from;
  float factor;
  int64_t number;     // FiniteCheck::number
  uint64_t slot = 0;  // this thread's slot ([Note: finite checks])

  template <int N>
  struct Taken {
    Group<From, N> from;
    Group<To, N> to;
  };

  Division division(int64_t numel) const {
    return divide(numel, kWidth, {{to, sizeof(To)}, {from, sizeof(From)}});
  }

  template <int N>
  ZERORUN_HOST_DEVICE Taken<N> take(int64_t index) const {
    return {load<N>(from + index), load<N>(to + index)};
  }

  template <int N>
  ZERORUN_HOST_DEVICE void give(int64_t index, const Taken<N>& taken) {
    Group<To, N> result;
    bool finite = true;
    ZERORUN_UNROLL
    for (int i = 0; i < N; ++i) {
      const float value = widen(taken.from.values[i]) * factor;
      finite &= stays_finite<float>(value);
      result.values[i] = narrow<To>(widen(taken.to.values[i]) + value);
    }
    store<N>(to + index, result);
    if (!finite) find(taken.from);
  }

 private:
  template <int N>
  ZERORUN_HOST_DEVICE void find(const Group<From, N>& from_values) {
    ZERORUN_UNROLL
    for (int i = 0; i < N; ++i) {
      const float value = widen(from_values.values[i]);
      if (!stays_finite<float>(value * factor))
        keep_larger(slot, slot_of(number + stays_finite<float>(value)));
    }
  }
};

/// Copies an element of `values` to `master` if the master weight does not round to that value.
template <typename From>
struct FollowWritten {
  static constexpr int kWidth = kWidthOf<float, From>;
  static constexpr int kAhead = 2;
  float* master;
  const From* values;

  template <int N>
  struct Taken {
    Group<float, N> master;
    Group<From, N> values;
  };

  Division division(int64_t numel) const {
    return divide(numel, kWidth, {{master, sizeof(float)}, {values, sizeof(From)}});
  }

  template <int N>
  ZERORUN_HOST_DEVICE Taken<N> take(int64_t index) const {
    return {load<N>(master + index), load<N>(values + index)};
  }

  template <int N>
  ZERORUN_HOST_DEVICE void give(int64_t index, Taken<N> taken) const {
    ZERORUN_UNROLL
    for (int i = 0; i < N; ++i) {
      const float value = widen(taken.values.values[i]);
      float& kept = taken.master.values[i];
      if (!(widen(narrow<From>(kept)) == value)) kept = value;
    }
    store<N>(master + index, taken.master);
  }
};

// [Note: sum of squares] The order of the additions depends only on the number of values, so the grid size
// and the order in which blocks run do not change the bits. The values are split into runs of kRun elements.
// Run r belongs to thread r % kThreads of part r / kThreads % kParts. Each thread adds its runs. Each part
// adds the sums of its threads by halving: in each step the first half of the threads adds the sums of the
// second half. Then the threads of the last block to finish add the parts, and their sums are added by
// halving too.

inline constexpr int kThreads = 256;  // per block
inline constexpr int kParts = 1024;
inline constexpr int kRun = 8;

/// Memory that the blocks of add_squares share. It must be zero before the first call. Calls must not
/// overlap.
struct SquaresScratch {
  double parts[kParts];
  unsigned arrived;  // number of blocks that have finished; the last block resets it to 0
};

/// The number of parts for `numel` values.
inline int parts_of(int64_t numel) {
  constexpr int64_t kPart = int64_t{kRun} * kThreads;
  const int64_t parts = (numel + kPart - 1) / kPart;
  return static_cast<int>(parts < kParts ? parts : kParts);
}

template <typename T>
struct Squares {
  const T* values;
  int64_t numel;
  int64_t number;  // number of the first value ([Note: finite checks]); each next value has the next number
  bool aligned;    // `values` is aligned to kAccess bytes

  /// Returns the sum of squares over the runs of `thread` in `part`. Reports values that are not finite in
  /// `slot`.
  ZERORUN_HOST_DEVICE double sum(int part, int thread, uint64_t& slot) const {
    constexpr int64_t kStride = int64_t{kRun} * kThreads * kParts;
    constexpr int kInFlight = 64 / (kRun * sizeof(T));  // runs that are loaded before the first is added
    double total = 0;
    int64_t begin = (int64_t{part} * kThreads + thread) * kRun;
    for (; aligned && begin + (kInFlight - 1) * kStride + kRun <= numel; begin += kInFlight * kStride) {
      Group<T, kRun> runs[kInFlight];
      ZERORUN_UNROLL
      for (int run = 0; run < kInFlight; ++run) runs[run] = load<kRun>(values + begin + run * kStride);
      ZERORUN_UNROLL
      for (int run = 0; run < kInFlight; ++run) add_run(runs[run], begin + run * kStride, total, slot);
    }
    for (; begin < numel; begin += kStride) {
      if (aligned && begin + kRun <= numel) {
        add_run(load<kRun>(values + begin), begin, total, slot);
      } else {
        for (int64_t i = begin; i < begin + kRun && i < numel; ++i) add(widen(values[i]), i, total, slot);
      }
    }
    return total;
  }

 private:
  ZERORUN_HOST_DEVICE void add_run(const Group<T, kRun>& run, int64_t begin, double& total,
                                   uint64_t& slot) const {
    ZERORUN_UNROLL
    for (int i = 0; i < kRun; ++i) add(widen(run.values[i]), begin + i, total, slot);
  }

  ZERORUN_HOST_DEVICE void add(float value, int64_t position, double& total, uint64_t& slot) const {
    total += static_cast<double>(value) * static_cast<double>(value);
    if (!stays_finite<float>(value)) keep_larger(slot, slot_of(number + position));
  }
};

/// Returns the sum of the parts that `thread` adds.
ZERORUN_HOST_DEVICE double sum_of_parts(const volatile double* parts, int count, int thread) {
  double total = 0;
  for (int i = thread; i < count; i += kThreads) total += parts[i];
  return total;
}

/// One halving step of the sum over kThreads threads. `distance` is kThreads / 2 in the first step and 1 in
/// the last. All threads must synchronize between steps.
ZERORUN_HOST_DEVICE void add_upper_half(double* sums, int thread, int distance) {
  if (thread < distance) sums[thread] += sums[thread + distance];
}

}  // namespace zerorun::cuda
