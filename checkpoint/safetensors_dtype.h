// Names of dtypes in safetensors files. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/dtype.h"

namespace zerorun {

/// Bytes per element of the dtype with this name; absent for a dtype that ZeroRun does not know.
std::optional<int64_t> bytes_per_element(std::string_view safetensors_name);

constexpr const char* safetensors_name(Dtype dtype) {
  return dtype == Dtype::fp32 ? "F32" : dtype == Dtype::bf16 ? "BF16" : "F16";
}

/// The dtype of training with this name; absent if training uses no such dtype.
std::optional<Dtype> training_dtype_named(std::string_view safetensors_name);

}  // namespace zerorun
