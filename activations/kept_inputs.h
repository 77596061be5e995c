// What a recomputed block keeps of its inputs until its backward: each input as it is, this tensor rank's
// part of it (DeepSpeed's partition_activations), a copy in host memory (cpu_checkpointing), or a copy in a
// file (zerorun.recompute.nvme_path). Plain values; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "activations/kept_buffer.h"
#include "comm/communicator.h"
#include "offload/scratch_file.h"

namespace zerorun {

/// Where inputs are kept.
struct InputHome {
  /// If set, each of these ranks keeps its part. They give a block the same inputs. Must outlive the blocks.
  Communicator* tensor_ranks = nullptr;
  bool on_host = false;            // inputs on a GPU are copied to page-locked memory
  c10::Device device = c10::kCPU;  // the engine's
  /// If set, what blocks have computed is kept there, from kSmallestInFile bytes on, whatever `on_host` says.
  std::shared_ptr<ScratchFile> file = nullptr;
  /// If set, what blocks have computed is copied there, unless it goes to the host or to the file.
  std::shared_ptr<KeptBuffer> buffer = nullptr;
};
inline constexpr int64_t kSmallestInFile = 512;

/// One input between a block's forward and its backward.
class KeptInput {
 public:
  /// `label`: for messages, such as "an input of block h.3".
  KeptInput(const at::Tensor& input, const InputHome& home, const std::string& label);

  /// What autograd is to save instead of the input: the input itself, a part of it, or a copy. For an input
  /// in the file a tensor without elements: once autograd lets go of it, the file does so of the input.
  at::Tensor saved() { return std::move(saved_); }
  /// The input again, from what saved() has returned. A collective of `home.tensor_ranks` if they keep parts;
  /// `label` is for messages. Without a graph; requires grad as the input did.
  at::Tensor restored(const at::Tensor& saved, const std::string& label) const;
  bool is_part() const { return ranks_ != nullptr; }
  int64_t bytes_in_file() const;

 private:
  void move_to_file(const std::string& label);
  at::Tensor read() const;

  at::Tensor saved_;
  std::vector<int64_t> sizes_, strides_;
  c10::Device device_;
  c10::ScalarType dtype_;
  bool requires_grad_;
  bool is_moved_ = false;                        // a part or a copy
  Communicator* ranks_ = nullptr;                // set if saved_ is a part
  std::shared_ptr<ScratchFile> file_ = nullptr;  // set if the input, or its part, is there
  int64_t block_ = 0;                            // of the file
  int64_t numel_ = 0;                            // of the block
};

/// All inputs of a block between its forward and its backward.
class KeptInputs {
 public:
  /// Returns what autograd is to save. Some of `inputs` may be undefined. `block`: its name. `with_whole`:
  /// the inputs of which parts are kept are saved whole too, and restore() compares them.
  std::vector<at::Tensor> keep(const std::vector<at::Tensor>& inputs, const InputHome& home,
                               const std::string& block, bool with_whole);
  /// The inputs again. Throws UserError if the parts of tensor ranks make another input than a whole one.
  std::vector<at::Tensor> restore(const std::vector<at::Tensor>& saved) const;
  int64_t bytes_in_file() const;

 private:
  void check_same(const at::Tensor& joined, const at::Tensor& whole, size_t number) const;

  std::string block_;
  std::vector<std::optional<KeptInput>> inputs_;  // absent: undefined
  bool has_whole_ = false;
};

}  // namespace zerorun
