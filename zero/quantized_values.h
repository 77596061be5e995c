// Values in 8 bits: a scale for each block of kQuantizedBlock elements, which is the block's largest absolute
// value / 127. So a value is off by at most half a scale (ZeRO++, arXiv:2306.10209, section 3.1).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace zerorun {

inline constexpr int64_t kQuantizedBlock = 256;  // elements

/// The number of bytes of `numel` quantized elements.
int64_t quantized_bytes(int64_t numel);
/// Returns `values`, 1-D, in 8 bits: bytes of whole blocks (the last one filled up with zeros), and then the
/// blocks' scales in float32. A value that is not finite makes its block NaN.
at::Tensor quantized(const at::Tensor& values);
/// Writes the values of quantized() to `values`.
void dequantize(const at::Tensor& bytes, const at::Tensor& values);

}  // namespace zerorun
