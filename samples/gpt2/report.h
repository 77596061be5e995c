// What rank 0 tells about a training run: the memory table and progress. Owned by main(); one thread.
#pragma once

#include <zerorun/engine.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "samples/common/csv_log.h"

namespace zerorun {

/// Bytes on this rank by category, beside what the ZeRO formula gives for the model states.
std::string memory_table(const BytesByCategory& bytes, double formula_bytes);

/// What this rank has sent per micro-step, in the unit of the ZeRO paper, (N-1)/N x parameters, and how
/// gathering went. Several ranks.
std::string traffic_report(Engine& engine, int64_t parameters, int64_t micro_steps);

/// Waits for the checkpoint that is being written. Where that takes long rank 0 shows how far it is, on a
/// terminal.
void await_checkpoint(Engine& engine);

/// On a terminal one live line; elsewhere a line every `steps_per_print` steps. Standard output.
class Progress {
 public:
  /// `first`: the step that this run begins with.
  Progress(int64_t first, int64_t steps, int64_t tokens_per_step, std::optional<int64_t> steps_per_print);

  void step_done(const StepRecord& record);
  /// Ends the live line and says how it went.
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

}  // namespace zerorun
