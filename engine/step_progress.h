// How far training has come: optimizer steps, and the micro-steps of the current one. Owned by EngineState,
// used by its thread.
#pragma once

#include <cstdint>
#include <optional>

#include "config/config_types.h"

namespace zerorun {

struct StepCounts {
  int64_t micro = 0;   // micro-steps since the last optimizer step
  int64_t global = 0;  // optimizer steps taken or skipped
  int64_t skipped = 0;
  int64_t samples = 0;  // of all ranks, in these optimizer steps
  int64_t applied() const { return global - skipped; }
};

class StepProgress {
 public:
  explicit StepProgress(const Config& config)
      : managed_(config.managed_gradient_accumulation),
        micro_steps_(config.batch.gradient_accumulation_steps) {}

  const StepCounts& counts() const { return counts_; }
  /// For a checkpoint that is loaded.
  StepCounts& restored_counts() { return counts_; }

  /// Whether the next step() updates.
  bool step_updates() const {
    if (batch_) return counts_.micro + 1 >= *batch_;
    return !managed_ || boundary_.value_or(counts_.micro + 1 >= micro_steps_);
  }
  /// Whether the next backward is the last one before an optimizer step, as far as is known.
  bool is_last_backward() const { return (managed_ || batch_) && step_updates() && !in_no_sync(); }
  /// From now until end_window() an optimizer step has `micro_steps`, whatever the config and the program
  /// say.
  void begin_batch(int64_t micro_steps) { batch_ = micro_steps; }

  /// Whether the program has declared the next backward the last one before an optimizer step.
  bool is_declared_last() const { return boundary_.value_or(false) && !in_no_sync(); }
  void set_boundary(bool is_boundary) { boundary_ = is_boundary; }

  bool in_no_sync() const { return open_no_syncs_ > 0; }
  void open_no_sync() { ++open_no_syncs_; }
  void close_no_sync() { --open_no_syncs_; }

  void end_micro_step() { ++counts_.micro; }
  void end_window() {
    counts_.micro = 0;
    batch_.reset();
  }
  void start_update() { is_updating_ = true; }
  /// `samples`: of all ranks, in all optimizer steps with this one.
  void end_update(int64_t samples) {
    is_updating_ = false;
    ++counts_.global;
    counts_.samples = samples;
  }
  void note_skipped() { ++counts_.skipped; }
  /// Whether an update has thrown: some parameters are updated and others are not.
  bool update_failed() const { return is_updating_; }

 private:
  bool managed_;
  int64_t micro_steps_;
  StepCounts counts_;
  std::optional<int64_t> batch_;  // micro-steps of the pipeline's window, in one
  std::optional<bool> boundary_;  // whether the next step() updates, if the program has said so
  int open_no_syncs_ = 0;
  bool is_updating_ = false;  // an update has begun and not ended
};

}  // namespace zerorun
