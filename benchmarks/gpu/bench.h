// What the parts of bench_gpu share: options, device, report, and the order of timed work. One thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/gpu/device_clock.h"
#include "benchmarks/gpu/report.h"
#include "comm/communicator.h"

namespace zerorun {

inline constexpr double kGiga = 1e9;

struct BenchOptions {
  std::vector<std::string> parts = {"copy", "kernels", "gpt2", "operators", "offload", "checkpoint"};
  std::vector<std::string> sizes = {"124M", "1.3B"};  // models of the part gpt2
  std::string device = "auto";
  std::string json;    // file; empty: none
  std::string folder;  // of the part checkpoint; empty: the system's for temporary files
  int rounds = 7;
  double seconds_limit = 30;  // of a part; in gpt2, of a model
  bool tiny = false;
};

struct Bench {
  BenchOptions options;
  std::shared_ptr<Communicator> communicator;
  DeviceClock clock;
  Report report;
  double matrix_rate = 0;  // floating-point operations per second; 0: not measured yet
};

/// A moment after which no more rounds start.
class TimeLimit {
 public:
  explicit TimeLimit(double seconds)
      : end_(Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}
  bool is_over() const { return Clock::now() >= end_; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
};

using Body = std::function<void()>;

/// Times each body once in every round, so that drifting clocks and temperatures affect all of them. Every
/// second round has the reverse order. Returns the times by body and round. At least 3 rounds; no further
/// round starts after `limit`.
std::vector<std::vector<double>> take_turns(const std::vector<Body>& bodies, int rounds,
                                            const TimeLimit& limit,
                                            const std::function<double(const Body&)>& time);

/// Runs `measure`. If it throws, the error becomes a failure of the report, and other measurements go on.
void attempt(Bench& bench, const std::string& part, const std::string& subject, const Body& measure);

/// The rate of a bf16 matrix product of normally distributed values, in operations per second. Measured by
/// the first call.
double matrix_rate(Bench& bench);

// The parts.
void measure_copy(Bench& bench);
void measure_kernels(Bench& bench);
void measure_gpt2(Bench& bench);
void measure_operators(Bench& bench);
void measure_offload(Bench& bench);
void measure_checkpoint(Bench& bench);

}  // namespace zerorun
