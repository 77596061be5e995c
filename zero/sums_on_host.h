// Copies of a rank's sums of gradients in host memory, for an update on the host. The copy stream writes them
// during backward: [Note: streams of gradients] in zero/gradient_reducer.h. Owned by GradientReducer, used by
// its thread. Without buckets all functions do nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "device/device.h"
#include "device/streams.h"

namespace zerorun {

class SumsOnHost {
 public:
  explicit SumsOnHost(Device& device) : device_(&device), streams_(&device.streams()) {}

  /// Makes memory for the next bucket. `sums`: this rank's slice of them.
  void add_bucket(const at::Tensor& sums);
  /// The copy stream may still be writing.
  const at::Tensor& memory(int bucket) const { return buckets_[bucket].memory; }

  /// Call this before writing to the bucket's sums on the current stream, which waits until they have been
  /// copied. The copy is outdated from then on.
  void start_change(int bucket);
  /// Copies the sums after all work of the current stream so far, unless the copy is not outdated.
  void send(int bucket);
  /// The copies are outdated, and later work on the current stream may write to the sums.
  void start_window();

 private:
  struct Bucket {
    at::Tensor sums;
    at::Tensor memory;
    bool is_sent = false;  // the sums of the current window are on the host, or being copied there
    Event summed;          // recorded when the sums may be copied
    Event left;            // recorded after the last copy
  };

  Device* device_;
  Streams* streams_;
  std::vector<Bucket> buckets_;
};

}  // namespace zerorun
