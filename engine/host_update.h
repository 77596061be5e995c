// Updates in the host's memory, of a rank whose parameters are on a GPU (offload_optimizer): gradients have
// come down under backward (GradientReducer), the host updates slice by slice, and new values go up on the
// stream of copies, from where their gathers wait for them. Owned by the engine, used by its thread.
//
// [Note: one wait] The facts of a step come to the host on the stream of copies, behind its gradients and
// behind what the step before has sent up. The host updates when it has heard them, so it waits for nothing
// else.
//
// [Note: on CPU ranks] The host's memory is where ranks on CPUs compute: they have none of this, and nothing
// is copied.
#pragma once

#include <vector>

#include "config/config_types.h"
#include "engine/options.h"
#include "zero/buckets.h"
#include "zero/gradient_reducer.h"

namespace zerorun {

/// Whether the config asks for updates on the host, and ranks on this device have another memory.
bool updates_on_host(const Config& config, Device& device);

/// Whether the slices of parameters are with the host too, or in files (offload_param).
bool brings_shards(const Config& config, Device& device);

class HostUpdate {
 public:
  /// All arguments outlive it.
  HostUpdate(const SliceStore& store, const Buckets& buckets, const GradientReducer& reducer,
             Communicator& communicator);

  /// The bucket's slice of new values, in the host's memory and in the dtype of training: what goes up, or
  /// stays and is brought by gathers (offload_param).
  const at::Tensor& values(int bucket) const { return values_[bucket]; }
  /// What is updated, from the slice's element `begin` on: under fp32 training that is what goes up.
  void take_exact(int bucket, int64_t begin, const at::Tensor& exact);
  /// On the current stream. What gathers bring stays.
  void send_up(int bucket);
  /// Returns when all that was sent up has arrived: the host may change what it sends.
  void await_arrival() const;
  /// Of the host's memory, beside what the store has there.
  int64_t bytes() const { return bytes_; }

 private:
  const Buckets* buckets_;
  Communicator* communicator_;
  Device* device_;
  std::vector<at::Tensor> values_;  // by bucket
  int64_t bytes_ = 0;
};

}  // namespace zerorun
