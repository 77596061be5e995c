// The floating-point types that training uses, named as in ds_config.json. Constants; any thread.
#pragma once

#include <cstdint>

namespace zerorun {

enum class Dtype : uint8_t { fp32, bf16, fp16 };

constexpr int64_t size_of(Dtype dtype) {
  return dtype == Dtype::fp32 ? 4 : 2;
}

constexpr const char* name_of(Dtype dtype) {
  return dtype == Dtype::fp32 ? "fp32" : dtype == Dtype::bf16 ? "bf16" : "fp16";
}

}  // namespace zerorun
