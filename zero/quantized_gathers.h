// Gathers of partitioned parameters in 8 bits (qwZ of ZeRO++, arXiv:2306.10209, section 3.1;
// zero_quantized_weights): each rank sends its slice as int8 with a scale for each block of kBlock elements.
// All ranks, the slice's owner too, compute with the same rounded values; slices and master weights stay
// exact. Owned by GatheredBuckets, used under Residency's lock.
//
// A block's scale is its largest absolute value / 127, so a gathered value is off by at most half a scale.
// What the program writes to gathered values would reach the slices rounded: so before operators that write,
// and in scopes, buckets are gathered exactly.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace zerorun {

class QuantizedGathers {
 public:
  static constexpr int64_t kBlock = 256;  // elements

  /// `communicator`, which has `buckets` buckets, must outlive this object.
  QuantizedGathers(bool enabled, int buckets, Communicator& communicator);

  bool enabled() const { return enabled_; }
  /// Starts a gather of the slices, of which `own` is this rank's, on the current stream.
  std::unique_ptr<Work> gather(int bucket, const at::Tensor& own, std::string label, std::string reason);
  /// Writes what was gathered to `memory`, all of the bucket, on the current stream. Nothing if the bucket's
  /// last gather was none of these.
  void decode(int bucket, const at::Tensor& memory);

 private:
  bool enabled_;
  Communicator* communicator_;
  std::vector<at::Tensor> gathered_;  // by bucket: what ranks send, while a gather is under way
};

/// Returns `values`, 1-D, in 8 bits: bytes of whole blocks (the last one filled up with zeros), and then the
/// blocks' scales in float32.
at::Tensor quantized(const at::Tensor& values);
/// Writes the values of quantized() to `values`.
void dequantize(const at::Tensor& bytes, const at::Tensor& values);

}  // namespace zerorun
