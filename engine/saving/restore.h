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
  void check_states() const;
  // Rates and betas belong to parameter groups, so each parameter must be in the same group.
  void check_groups() const;
  // For the gradients of an unfinished window.
  void check_window() const;
  bool is_there(const std::string& parameter) const;
  // Whether the parameter's part of a state other than gradients is read.
  bool is_read(int parameter, const StateTensor& state) const;
  bool has_window() const { return options_.counters && saved_->manifest().window; }
  void read_slice(int bucket);
  std::string gradient_state() const;
  void read_gradients(int parameter);
  void resume_window() const;
  void check_counts(const checkpoint::Manifest& manifest) const;
  // Prefers master weights, because 16-bit values are rounded. Without master weights (fp32 training) the
  // values are exact.
  std::string source_of_values(const std::string& parameter) const;
  // The state of the checkpoint from which one of the engine's is read. Throws UserError if it lacks it.
  std::string source_of(int parameter, const StateTensor& state) const;
  // A piece of the engine's parameter, to be read from the state `source` of the checkpoint.
  checkpoint::WantedElements wanted(int parameter, const std::string& source, const StatePiece& piece) const;

  EngineState* state_;
  checkpoint::SavedState* saved_;
  RestoreOptions options_;
  std::map<std::string, std::string> names_;  // from a name or alias to the name in the checkpoint
};

}  // namespace zerorun
