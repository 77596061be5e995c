// What the checks of kernels (tests/cuda/kernel_cases.h) share: the cases' dtypes and places, and results.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "base/narrow_floats.h"
#include "device/dtypes.h"
#include "tests/cuda/kernel_cases.h"

namespace zerorun::testing {

inline constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
inline constexpr int64_t kMany = 1'000'000;  // with more elements than these, fewer combinations are tested

// Returns the offsets at which arrays start, in elements after an aligned address.
inline std::vector<int64_t> offsets_for(int64_t numel) {
  if (numel > kMany) return {0, 1};
  return {0, 1, 4, 7};
}

inline at::Tensor from_floats(const std::vector<float>& floats, at::ScalarType dtype) {
  at::Tensor values = at::empty({static_cast<int64_t>(floats.size())}, dtype);
  narrow(floats.data(), values.mutable_data_ptr(), dtype_of(values), values.numel());
  return values;
}

inline std::vector<float> to_floats(const at::Tensor& values) {
  std::vector<float> floats(values.numel());
  widen(values.const_data_ptr(), dtype_of(values), floats.data(), values.numel());
  return floats;
}

using Results = std::vector<at::Tensor>;

inline void check_same(const Results& found, const Results& wanted) {
  REQUIRE(found.size() == wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    INFO("array " << i);
    CHECK(same_bits(found[i], wanted[i]));
  }
}

}  // namespace zerorun::testing
