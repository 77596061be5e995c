// Shows how training goes, on standard output of rank 0: on a terminal one line that stays, else a line every
// `steps_per_print` steps of the config. For any program; used by the thread that trains.
//
//   zerorun::LiveLine live(engine, {.steps = 1000, .tokens_per_step = 65536});
//   ... engine.step(); live.show({.steps = engine.global_steps(), .loss = loss.item<double>()});
//   live.end();
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace zerorun {

class Engine;
struct EngineState;

/// An optimizer step that has ended.
struct LiveStep {
  int64_t steps = 0;  // that have ended, with this one
  double loss = 0;
  std::optional<double> lr = {};
  std::optional<double> grad_norm = {};
};

class LiveLine {
 public:
  struct Options {
    int64_t steps = 0;            // of the whole training; 0: not known
    int64_t tokens_per_step = 0;  // of all ranks; 0: samples are shown in place of tokens
  };
  /// On every rank, or on rank 0 only: the others show nothing. If something will be shown, measures the
  /// speed of a matrix product in the training's dtype (a fraction of a second), and has the engine count the
  /// floating-point operations of one of the next steps.
  LiveLine(Engine& engine, const Options& options);
  ~LiveLine();
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  /// Shows the step, if it is time to.
  void show(const LiveStep& step);
  /// Ends a line that stays, so that other output begins on a new one.
  void end();

 private:
  using Clock = std::chrono::steady_clock;

  std::string text_of(const LiveStep& step, Clock::time_point now) const;
  /// " 41.2 GFLOP/s (52 %)", of this rank; empty until they are counted.
  std::string speed_of(double seconds_per_step) const;

  std::shared_ptr<EngineState> state_;  // null: shows nothing
  Options options_;
  bool stays_ = false;
  int64_t interval_ = 0;  // steps from one line to the next; 0: none
  double peak_ = 0;       // FLOP/s of a matrix product
  int64_t first_ = 0;     // steps that had ended before
  bool is_open_ = false;  // a line that stays is on the terminal
  Clock::time_point begin_;
  std::optional<Clock::time_point> last_shown_;
  std::chrono::nanoseconds waited_before_{0};
};

}  // namespace zerorun
