// Updates in the host's memory for a rank whose parameters are on a GPU (offload_optimizer): gradients are
// copied to the host during backward (GradientReducer), the host updates slice by slice, and the copy stream
// sends new values to the GPU, where their gathers wait for them. Owned by the engine, used by its thread.
//
// [Note: one wait] A step's facts come to the host on the copy stream, behind the step's gradients and behind
// the values that the step before has sent to the GPU. The host updates once the facts are there, so it needs
// no other wait.
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

/// Whether the config asks for updates on the host, and `device` has memory of its own.
bool updates_on_host(const Config& config, Device& device);

/// Whether slices of parameters are kept on the host or in files too (offload_param).
bool shards_off_gpu(const Config& config, Device& device);

class HostUpdate {
 public:
  /// All arguments outlive it.
  HostUpdate(const SliceStore& store, const Buckets& buckets, const GradientReducer& reducer,
             Communicator& communicator);

  /// The bucket's slice of new values, in the host's memory and in the dtype of training: sent to the GPU, or
  /// kept here for gathers to bring (offload_param).
  const at::Tensor& values(int bucket) const { return values_[bucket]; }
  /// Under fp32 training copies `exact`, updated from the slice's element `begin` on, into values(bucket),
  /// unless it lies there.
  void copy_master(int bucket, int64_t begin, const at::Tensor& exact);
  /// Sends values(bucket) to the GPU on the current stream, unless gathers bring them.
  void send_to_gpu(int bucket);
  /// `stream` waits until all values sent have arrived on the GPU.
  void hand_over_to(StreamId stream);
  /// Returns when all values sent have arrived on the GPU: then the host may change their source.
  void await_arrival();
  /// Bytes of host memory, beside what the store keeps there.
  int64_t bytes() const { return bytes_; }

 private:
  const Buckets* buckets_;
  Communicator* communicator_;
  Device* device_;
  std::vector<at::Tensor> values_;  // by bucket
  Event arrived_;                   // all values sent so far
  int64_t bytes_ = 0;
};

}  // namespace zerorun
