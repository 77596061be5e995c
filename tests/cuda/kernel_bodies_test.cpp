// Tests the bodies of the CUDA kernels. They run on the host, one simulated GPU thread after another. Needs
// no GPU.
#include "cuda/kernel_bodies.h"

#include <ATen/ops/zeros.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/narrow_floats.h"
#include "tests/cuda/body_device.h"
#include "tests/cuda/kernel_cases.h"

namespace zerorun::testing {
namespace {

const Sizes kSizes = {0, 1, 3, 8, 9, 31, 257, 2003};
constexpr int64_t kThreadCounts[] = {1, 7, 512};

bool is_finite(uint16_t bits, uint16_t infinity) {
  return (bits & infinity) != infinity;
}

// Records how often each element was visited, and the size of the group in which it was visited.
struct Visits {
  static constexpr int kWidth = 4;
  static constexpr int kAhead = 2;
  std::vector<int>* counts;
  std::vector<int>* widths;

  template <int N>
  int64_t take(int64_t index) const {
    return index;
  }

  template <int N>
  void give(int64_t index, int64_t taken) const {
    CHECK(taken == index);
    for (int i = 0; i < N; ++i) {
      ++counts->at(index + i);
      widths->at(index + i) = N;
    }
  }
};

}  // namespace

TEST_CASE("kernel bodies: every 16-bit value is widened to the same bits as on the CPU") {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    float wanted = 0;
    widen(&bits, Dtype::bf16, &wanted, 1, Simd::portable);
    REQUIRE(std::bit_cast<uint32_t>(cuda::widen(cuda::Bf16{bits})) == std::bit_cast<uint32_t>(wanted));
    widen(&bits, Dtype::fp16, &wanted, 1, Simd::portable);
    REQUIRE(std::bit_cast<uint32_t>(cuda::widen(cuda::Fp16{bits})) == std::bit_cast<uint32_t>(wanted));
  }
}

TEST_CASE("kernel bodies: values are rounded to the same bits as on the CPU, NaN included") {
  // Tests all values of a float's upper 16 bits. Combines each with those values of the lower 16 bits at
  // which the result of rounding may change, and with the neighbours of those values.
  std::vector<uint32_t> lower = {0, 1, 0xffff};
  for (int bit = 1; bit < 16; ++bit) {
    for (uint32_t near : {0xffffffff, 0U, 1U}) {
      lower.push_back((1U << bit) + near);
      lower.push_back(0x10000 - (1U << bit) + near);
    }
  }
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t low : lower) {
      const auto value = std::bit_cast<float>((upper << 16) | low);
      uint16_t wanted = 0;
      narrow(&value, &wanted, Dtype::bf16, 1, Simd::portable);
      if (cuda::narrow<cuda::Bf16>(value).bits != wanted) FAIL_CHECK("bf16 of " << value);
      if (cuda::stays_finite<cuda::Bf16>(value) != is_finite(wanted, 0x7f80))
        FAIL_CHECK("finite bf16: " << value);
      narrow(&value, &wanted, Dtype::fp16, 1, Simd::portable);
      if (cuda::narrow<cuda::Fp16>(value).bits != wanted) FAIL_CHECK("fp16 of " << value);
      if (cuda::stays_finite<cuda::Fp16>(value) != is_finite(wanted, 0x7c00))
        FAIL_CHECK("finite fp16: " << value);
      if (cuda::stays_finite<float>(value) != std::isfinite(value)) FAIL_CHECK("finite fp32: " << value);
    }
  }
}

TEST_CASE("kernel bodies: every element is visited once, and groups are aligned in all arrays") {
  alignas(64) static float first[256];
  alignas(64) static uint16_t second[256];
  for (int64_t numel : {0, 1, 4, 5, 7, 8, 9, 30, 100}) {
    for (int64_t first_offset : {0, 1, 2, 3, 4}) {
      for (int64_t second_offset : {0, 1, 2, 3, 4}) {
        const cuda::Division division =
            cuda::divide(numel, 4, {{first + first_offset, 4}, {nullptr, 4}, {second + second_offset, 2}});
        const bool together = (first_offset - second_offset) % 4 == 0;
        const int64_t head = (4 - first_offset % 4) % 4;
        INFO(numel << " elements from " << first_offset << " and " << second_offset << " on");
        CHECK(division.groups == (together && numel >= head + 4 ? (numel - head) / 4 : 0));
        for (const int64_t threads : kThreadCounts) {
          std::vector<int> counts(numel);
          std::vector<int> widths(numel);
          for (int64_t thread = 0; thread < threads; ++thread) {
            Visits visits{&counts, &widths};
            cuda::run(visits, division, {thread, threads});
          }
          CHECK(counts == std::vector<int>(numel, 1));
          for (int64_t i = 0; i < numel; ++i) {
            const bool grouped = i >= division.head && i < division.head + 4 * division.groups;
            CHECK(widths[i] == (grouped ? 4 : 1));
          }
          if (division.groups > 0) {
            CHECK(reinterpret_cast<uintptr_t>(first + first_offset + division.head) % 16 == 0);
            CHECK(reinterpret_cast<uintptr_t>(second + second_offset + division.head) % 8 == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("kernel bodies: copies and sums have the CPU's bits") {
  for (const int64_t threads : kThreadCounts) {
    BodyDevice device(threads);
    check_copies(device, kSizes);
  }
}

TEST_CASE("kernel bodies: a 16-bit copy with factor 1 keeps all bits, those of NaN too") {
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor from = at::zeros({0x10000}, dtype);
    for (uint32_t i = 0; i < 0x10000; ++i) {
      static_cast<uint16_t*>(from.mutable_data_ptr())[i] = static_cast<uint16_t>(i);
    }
    const at::Tensor to = at::zeros({0x10000}, dtype);
    BodyDevice(64).copy_scaled(to, from, 1);
    CHECK(std::memcmp(to.const_data_ptr(), from.const_data_ptr(), from.nbytes()) == 0);
  }
}

TEST_CASE("kernel bodies: all threads together report the value that the CPU reports") {
  for (const int64_t threads : kThreadCounts) {
    BodyDevice device(threads);
    check_findings(device);
  }
}

TEST_CASE("kernel bodies: sums of squares depend on the values alone") {
  BodyDevice device(1);
  check_squares(device, {0, 1, 7, 8, 9, 2047, 2048, 2049, 300001, 4 * 8 * 256 * 1024 + 12345});
}

TEST_CASE("kernel bodies: updates have the CPU's bits") {
  for (const int64_t threads : kThreadCounts) {
    BodyDevice device(threads);
    check_updates(device, kSizes);
  }
}

TEST_CASE("kernel bodies: updates of bfloat16 state have the CPU's bits") {
  for (const int64_t threads : kThreadCounts) {
    BodyDevice device(threads);
    check_narrow_updates(device, kSizes);
    check_coded_updates(device, kSizes);
  }
}

TEST_CASE("kernel bodies: master weights follow what was written") {
  for (const int64_t threads : kThreadCounts) {
    BodyDevice device(threads);
    check_following(device, kSizes);
  }
}

}  // namespace zerorun::testing
