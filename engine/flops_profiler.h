// Counts the floating-point operations of one optimizer step as operators are dispatched, for flops_profiler.
// Owned by EngineState, used by its thread. Counts what this thread computes, and what autograd's threads
// compute for it. LibTorch calls the counter for each operator of that one step only.
//
// [Note: counted operators] Products of matrices, convolutions, attention, and their backwards. Others have
// few operations beside these, as in the literature's formulas. An operator that runs inside of a counted one
// (autocast's second call, a convolution's kernel) is a part of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "config/monitoring_config.h"
#include "engine/model.h"
#include "monitor/flops.h"

namespace zerorun {

struct CountedFlops;
class FlopsModules;

/// Counts what this thread dispatches as long as the object lives. Ends on the thread on which it began.
class FlopCounter {
 public:
  /// `all_threads`: also what autograd's threads dispatch for this one; only one such counter at a time.
  /// `modules`: also counts by module; null: does not.
  explicit FlopCounter(bool all_threads = false, std::unique_ptr<FlopsModules> modules = nullptr);
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  FlopTotals totals() const;

 private:
  std::shared_ptr<CountedFlops> counted_;
  uint64_t callback_;
};

class FlopsProfiler {
 public:
  struct Options {
    FlopsProfilerConfig config;
    bool is_counted = true;             // whether this is the rank that counts
    int64_t parameters = 0;             // for the report
    Model::NamedTensors of_model = {};  // the parameters by which operators belong to modules
    /// A device with streams: autograd computes on threads of its own, and the host's clock does not measure
    /// the device.
    bool asynchronous = false;
  };
  explicit FlopsProfiler(Options options) : options_(std::move(options)) {}
  /// Has one of the next steps counted, without a report.
  void count_a_step() { is_wanted_ = true; }
  /// The model FLOPs of the step that was counted last; absent: none was.
  std::optional<int64_t> model_flops() const { return model_flops_; }
  /// Begins to count if `steps` optimizer steps have ended, and the next one is to be profiled.
  void begin(int64_t steps);
  /// Ends the counting before the update, and prints the report.
  void end();

 private:
  Options options_;
  std::unique_ptr<FlopCounter> counter_;  // null: not counting
  bool is_wanted_ = false;                // a step is to be counted
  bool reports_ = false;                  // what is counted now
  std::optional<int64_t> model_flops_;
  int64_t step_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace zerorun
