// Updates in host memory for a rank whose parameters are on a GPU (offload_optimizer): GradientReducer copies
// gradients to the host during backward, the host updates slice by slice, and the copy stream sends the new
// values to the GPU, where gathers wait for them. Owned by the engine, used by its thread.
//
// [Note: one wait] The copy stream copies a step's facts (StepFacts) to the host after the step's gradients,
// and after it has sent the previous step's values to the GPU. So once the facts are on the host, the
// gradients are on the host too, and the host may overwrite the previous step's values. An update therefore
// waits for the facts only.
//
// [Note: on CPU ranks] Ranks on CPUs compute in the host's memory anyway: they have no HostUpdate, and
// nothing is copied.
#pragma once

#include <vector>

#include "config/config_types.h"
#include "engine/options.h"
#include "zero/buckets.h"
#include "zero/gradient_reducer.h"

namespace zerorun {

/// Whether the host updates the parameters of `device`. True for a GPU at stages 1 to 3 with
/// offload_optimizer, except with Muon.
bool updates_on_host(const Config& config, Device& device);

/// Whether slices of parameters are in host memory or files instead of GPU memory (offload_param).
bool shards_off_gpu(const Config& config, Device& device);

class HostUpdate {
 public:
  /// All arguments must outlive this object.
  HostUpdate(const SliceStore& store, const Buckets& buckets, const GradientReducer& reducer,
             Communicator& communicator);

  /// The bucket's slice of new values, in host memory and in the dtype of training. send_to_gpu() sends them
  /// to the GPU; under offload_param they stay in host memory, and gathers copy them to the GPU.
  const at::Tensor& values(int bucket) const { return values_[bucket]; }
  /// Under fp32 training copies `exact`, the updated master weights from element `begin` of the slice on, to
  /// values(bucket), unless `exact` already is that memory.
  void copy_master(int bucket, int64_t begin, const at::Tensor& exact);
  /// Sends values(bucket) to the GPU on the current stream, unless gathers copy them there.
  void send_to_gpu(int bucket);
  /// Makes `stream` wait until all values sent have arrived on the GPU.
  void hand_over_to(StreamId stream);
  /// Returns when all values sent have arrived on the GPU: from then on the host may change values().
  void await_arrival();
  /// Bytes of host memory, without those of the store.
  int64_t bytes() const { return bytes_; }

 private:
  const Buckets* buckets_;
  Communicator* communicator_;
  Device* device_;
  std::vector<at::Tensor> values_;  // by bucket
  Event arrived_;                   // all values sent so far are on the GPU
  int64_t bytes_ = 0;
};

}  // namespace zerorun
