// Restores an engine's state from a checkpoint: which checkpoints fit, and what is read from them. Made for
// one load; used by the engine's thread.
#pragma once

#include <map>
#include <string>

#include "checkpoint/saved_state.h"
#include "engine/engine_state.h"

namespace zerorun {

class Restore {
 public:
  /// `state` and `saved` must outlive this object.
  Restore(EngineState& state, checkpoint::SavedState& saved, const RestoreOptions& options);
  /// Throws UserError if the engine cannot take over the checkpoint's state.
  void check() const;
  /// Reads this rank's slices.
  void read_slices();
  /// Gathers the slices that other ranks have read, for states that this rank keeps in full. A collective.
  void gather_slices() const;
  /// Called on rank 0: reads the buffers and the frozen parameters that every rank has in full.
  void read_module() const;
  /// Restores step counts, learning rates, loss scale and generators, as the options say.
  void restore_numbers() const;

 private:
  void check_optimizer() const;
  void check_model() const;
  // Rates and betas belong to parameter groups, so each parameter must be in the same group.
  void check_groups() const;
  // For the gradients of an unfinished window.
  void check_window() const;
  bool is_there(const std::string& parameter) const;
  // A parameter that was frozen in the checkpoint and is trained now keeps the moments that it has here.
  bool has_moments(const std::string& parameter) const;
  bool has_window() const { return options_.counters && saved_->manifest().window; }
  // Reads a slice's states in the order in which they are in a checkpoint file, so each block is read once.
  void read_slice(int bucket);
  std::string gradient_state() const;
  void read_gradients(int parameter);
  void resume_window() const;
  // Ignores strides of dimensions of size 1, and all strides of an empty tensor.
  static bool same_strides(const checkpoint::SavedParameter& a, const checkpoint::SavedParameter& b);
  // Whether each place in memory belongs to one element: only then the strides tell the order of the
  // elements.
  static bool is_dense(const checkpoint::SavedParameter& parameter);
  // Returns the parameter, or its part, with its strides of the checkpoint.
  // The values of a whole parameter, joined if tensor ranks had parts of it.
  at::Tensor read_joined(const std::string& parameter, const std::string& source) const;
  at::Tensor read_whole(const std::string& parameter, const std::string& source,
                        int part = checkpoint::kWhole) const;
  void check_counts(const checkpoint::Manifest& manifest) const;
  // Prefers master weights, because 16-bit values are rounded. Without master weights (fp32 training) the
  // values are exact.
  std::string source_of_values(const std::string& parameter) const;
  // Reads a piece of the engine's parameter from the state `source` of the checkpoint.
  void read(int parameter, const std::string& source, const StatePiece& piece);

  EngineState* state_;
  checkpoint::SavedState* saved_;
  RestoreOptions options_;
  std::map<std::string, std::string> names_;  // from a name or alias to the name in the checkpoint
};

}  // namespace zerorun
