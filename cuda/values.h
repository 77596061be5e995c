// The values in kernels: 16-bit floats, and groups of adjacent values that one memory access loads or stores.
// Compiles for host and device, so that a host test can run the GPU's code. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "device/host_device.h"

// Put ZERORUN_UNROLL before a loop that indexes local arrays. On a GPU it unrolls the loop, which keeps the
// arrays in registers.
#if defined(__CUDA_ARCH__)
#define ZERORUN_UNROLL _Pragma("unroll")
#else
#define ZERORUN_UNROLL
#endif

namespace zerorun::cuda {

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

template <typename To, typename From>
ZERORUN_HOST_DEVICE To bits_as(const From& from) {
  return __builtin_bit_cast(To, from);
}

// The functions below convert single values. They give the same bits as base/narrow_floats.h, also for NaN.

inline constexpr uint32_t kInfinity = 0x7f800000;  // float32 infinity, as bits
inline constexpr uint32_t kQuiet = 0x00400000;     // quiet bit of a float32 NaN

ZERORUN_HOST_DEVICE float widen(float value) {
  return value;
}

ZERORUN_HOST_DEVICE float widen(Bf16 value) {
  return bits_as<float>(static_cast<uint32_t>(value.bits) << 16);
}

ZERORUN_HOST_DEVICE float widen(Fp16 value) {
  const uint32_t magnitude = value.bits & 0x7fffU;
  // The exponent bias of float32 is larger than that of float16 by 112. The multiplication corrects the
  // exponent exactly, also for subnormals.
  uint32_t bits = bits_as<uint32_t>(bits_as<float>(magnitude << 13) * 0x1p112F);
  if (magnitude >= 0x7c00) bits = (magnitude << 13) | kInfinity | (magnitude > 0x7c00 ? kQuiet : 0);
  return bits_as<float>(bits | (static_cast<uint32_t>(value.bits & 0x8000U) << 16));
}

/// Rounds `value` to nearest, ties to even.
template <typename To>
ZERORUN_HOST_DEVICE To narrow(float value);

template <>
ZERORUN_HOST_DEVICE float narrow<float>(float value) {
  return value;
}

template <>
ZERORUN_HOST_DEVICE Bf16 narrow<Bf16>(float value) {
  const auto bits = bits_as<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return {static_cast<uint16_t>(value != value ? 0xffff : rounded)};
}

template <>
ZERORUN_HOST_DEVICE Fp16 narrow<Fp16>(float value) {
  const auto bits = bits_as<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  // Rounding may carry into the exponent, and from the largest finite value to infinity.
  uint32_t rounded = (magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  if (magnitude < 0x38800000) {  // 2^-14: adding 0.5 rounds to a multiple of fp16's smallest subnormal
    rounded = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5F) - bits_as<uint32_t>(0.5F);
  }
  if (magnitude >= 0x47800000) {  // 2^16
    rounded = magnitude > kInfinity ? 0x7e00 | ((magnitude >> 13) & 0x3ff) : 0x7c00;
  }
  return {static_cast<uint16_t>(rounded | ((bits >> 16) & 0x8000))};
}

/// The smallest magnitude that rounds to infinity in To.
template <typename To>
inline constexpr float kOverflow = __builtin_huge_valf();
template <>
inline constexpr float kOverflow<Bf16> = 0x1.ffp127F;
template <>
inline constexpr float kOverflow<Fp16> = 65520.0F;

/// Whether `value` stays finite when it is rounded to To. False for NaN.
template <typename To>
ZERORUN_HOST_DEVICE bool stays_finite(float value) {
  return (value < 0 ? -value : value) < kOverflow<To>;
}

/// N adjacent values.
template <typename T, int N>
struct Group {
  T values[N];
};

/// The size in bytes of the widest access of one thread.
inline constexpr int kAccess = 16;

// The types of one access of 8 or 16 bytes. CUDA code uses CUDA's vector types.
#if defined(__CUDACC__)
using Words8 = uint2;
using Words16 = uint4;
#else
struct [[gnu::may_alias]] alignas(8) Words8 {
  uint32_t x, y;
};
struct [[gnu::may_alias]] alignas(16) Words16 {
  uint32_t x, y, z, w;
};
#endif
template <int kBytes>
using Words = std::conditional_t<kBytes == 16, Words16, Words8>;

// Checks alignment in host tests, because a misaligned access faults on a GPU but not on a CPU.
template <typename Access, typename T>
ZERORUN_HOST_DEVICE void check_aligned([[maybe_unused]] const T* memory) {
#if !defined(__CUDACC__)
  ZR_CHECK(reinterpret_cast<uintptr_t>(memory) % sizeof(Access) == 0, "an access that is not aligned");
#endif
}

/// Loads N values from `memory`, which must be aligned to their total size, or to kAccess bytes if that is
/// less.
template <int N, typename T>
ZERORUN_HOST_DEVICE Group<T, N> load(const T* memory) {
  if constexpr (N == 1) {
    return {{*memory}};
  } else if constexpr (sizeof(T) * N <= kAccess) {
    using Access = Words<sizeof(T) * N>;
    check_aligned<Access>(memory);
    return bits_as<Group<T, N>>(*reinterpret_cast<const Access*>(memory));
  } else {
    check_aligned<Words<kAccess>>(memory);
    constexpr int kParts = sizeof(T) * N / kAccess;
    struct Parts {
      Words<kAccess> parts[kParts];
    } read;
    ZERORUN_UNROLL
    for (int i = 0; i < kParts; ++i) read.parts[i] = reinterpret_cast<const Words<kAccess>*>(memory)[i];
    return bits_as<Group<T, N>>(read);
  }
}

/// Stores N values; the counterpart of load().
template <int N, typename T>
ZERORUN_HOST_DEVICE void store(T* memory, const Group<T, N>& group) {
  if constexpr (N == 1) {
    *memory = group.values[0];
  } else {
    static_assert(sizeof(T) * N <= kAccess);
    using Access = Words<sizeof(T) * N>;
    check_aligned<Access>(memory);
#if defined(__CUDA_ARCH__)
    __stwb(reinterpret_cast<Access*>(memory),
           bits_as<Access>(group));  // a plain assignment may be split into narrower stores
#else
    *reinterpret_cast<Access*>(memory) = bits_as<Access>(group);
#endif
  }
}

}  // namespace zerorun::cuda
