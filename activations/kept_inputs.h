// What a recomputed block keeps of its inputs until its backward: each input as it is, this tensor rank's
// part of it (DeepSpeed's partition_activations), or a copy in host memory (cpu_checkpointing). Plain values;
// any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/communicator.h"

namespace zerorun {

/// Where inputs are kept.
struct InputHome {
  /// If set, each of these ranks keeps its part. They give a block the same inputs. Must outlive the blocks.
  Communicator* tensor_ranks = nullptr;
  bool on_host = false;            // inputs on a GPU are copied to page-locked memory
  c10::Device device = c10::kCPU;  // the engine's
};

/// One input between a block's forward and its backward.
class KeptInput {
 public:
  KeptInput(const at::Tensor& input, const InputHome& home);

  /// What autograd is to save instead of the input: the input itself, a part of it, or a copy.
  at::Tensor saved() { return std::move(saved_); }
  /// The input again, from what saved() has returned. A collective of `home.tensor_ranks` if they keep parts;
  /// `label` is for messages. Without a graph; requires grad as the input did.
  at::Tensor restored(const at::Tensor& saved, const std::string& label) const;
  bool is_part() const { return ranks_ != nullptr; }

 private:
  at::Tensor saved_;
  std::vector<int64_t> sizes_;
  c10::Device device_;
  bool requires_grad_;
  bool is_moved_ = false;          // a part or a copy
  Communicator* ranks_ = nullptr;  // set if saved_ is a part
};

}  // namespace zerorun
