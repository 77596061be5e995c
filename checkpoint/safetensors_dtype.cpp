#include "checkpoint/safetensors_dtype.h"

#include <utility>

namespace zerorun {

std::optional<int64_t> bytes_per_element(std::string_view safetensors_name) {
  static constexpr std::pair<std::string_view, int64_t> kSizes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},   {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2},
      {"U16", 2},  {"F16", 2}, {"BF16", 2}, {"I32", 4},     {"U32", 4},     {"F32", 4},
      {"I64", 8},  {"U64", 8}, {"F64", 8},  {"C64", 8}};
  for (const auto& [name, bytes] : kSizes) {
    if (name == safetensors_name) return bytes;
  }
  return std::nullopt;
}

std::optional<Dtype> training_dtype_named(std::string_view safetensors_name) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
    if (safetensors_name == zerorun::safetensors_name(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace zerorun
