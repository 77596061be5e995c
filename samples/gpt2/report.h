// The output of rank 0 about a training run: memory table, traffic and progress. Owned by main(), used by one
// thread.
#pragma once

#include <zerorun/engine.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "samples/common/csv_log.h"

namespace samples {

/// Returns a table of the bytes on this rank by category. `formula_bytes` is the size of the model states by
/// the ZeRO paper's formula; the table compares it with the actual size.
std::string memory_table(const zerorun::BytesByCategory& bytes, double formula_bytes);

/// Reports the number of elements that this rank has sent per micro-step, in the ZeRO paper's unit of (N-1)/N
/// x parameters, and statistics of gathers. Needs more than one rank.
std::string traffic_report(zerorun::Engine& engine, int64_t parameters, int64_t micro_steps);

/// Waits for the checkpoint that is being written. On a terminal, rank 0 shows a progress bar after two
/// seconds.
void await_checkpoint(zerorun::Engine& engine);

/// Prints progress to standard output: one live line on a terminal, else a line every `steps_per_print`
/// steps.
class Progress {
 public:
  /// `first`: the step that this run begins with.
  Progress(int64_t first, int64_t steps, int64_t tokens_per_step, std::optional<int64_t> steps_per_print);

  void step_done(const StepRecord& record);
  /// Ends the live line and prints a summary.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  std::string line(const StepRecord& record, Clock::time_point now) const;

  int64_t first_step_;
  int64_t steps_;
  int64_t tokens_per_step_;
  std::optional<int64_t> steps_per_print_;
  bool terminal_;
  Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> last_shown_;
  std::optional<double> first_loss_;
  StepRecord last_;
};

}  // namespace samples
