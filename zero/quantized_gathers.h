// Gathers of partitioned parameters in 8 bits (qwZ of ZeRO++, arXiv:2306.10209, section 3.1;
// zero_quantized_weights): each rank sends its slice quantized (zero/quantized_values.h). All ranks, the
// slice's owner too, compute with the same rounded values; slices and master weights stay exact. Owned by
// GatheredBuckets, used under Residency's lock.
//
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

}  // namespace zerorun
