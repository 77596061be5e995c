// The answer of a plan, as text and as JSON. Plain values; pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "plan/request.h"

namespace zerorun {

/// What one rank sends in one optimizer step.
struct SentPerStep {
  double gathered_elements = 0;  // all-gathers: of parameters, at stage 0 of gradients
  double gathered_bytes = 0;
  double reduced_elements = 0;  // reduce-scatters of gradients
  double reduced_bytes = 0;
  double passed_bytes = 0;  // between pipeline stages: activations and their gradients
  /// Of these bytes those that go to ranks of other hosts: if all ranks talk to each other, and with `--comm
  /// two-level`.
  double between_hosts = 0;
  double between_hosts_on_levels = 0;
  double bytes() const { return gathered_bytes + reduced_bytes + passed_bytes; }
};

struct RankPlan {
  BytesByCategory peak;  // each category's largest number, between calls of the engine
  /// The most bytes that a micro-step's forward and backward hold at a time besides `peak`: activations, and
  /// gradients on their way to buckets. Absent without the program's forward.
  std::optional<int64_t> activations = {};
  /// Without the program's forward: the most bytes that gathers and reductions in 8 bits need for a moment.
  /// Else they are among `activations`.
  int64_t transfers = 0;
  SentPerStep sent;
  int64_t file_bytes_per_step = 0;  // written to files in one optimizer step
  /// memory() of a rank of each pipeline stage, of which this plan is the largest; empty: there are none.
  std::vector<int64_t> stages = {};

  /// Bytes of the memory of the device where the rank computes, with activations if they are known.
  int64_t memory() const;
};

struct PlanOfWorld {
  int world_size;
  std::optional<RankPlan> plan;  // absent: the configuration does not allow this number of ranks
};

/// A key of zero_optimization with another value. Values are JSON.
struct ConfigChange {
  std::string key;
  std::string before;  // empty: the key is absent
  std::string after;
};

struct FittingConfig {
  std::vector<ConfigChange> changes;
  RankPlan plan;  // of the changed configuration
};

struct PlanReport {
  PlanRequest request;
  int64_t parameters = 0;
  int64_t tensors = 0;
  RankPlan plan = {};
  /// Why activations are not known, if the program's forward was to be run.
  std::string unknown_activations = {};
  std::vector<PlanOfWorld> others = {};
  /// Absent if the plan fits, or nothing makes it fit.
  std::optional<FittingConfig> fitting = {};

  bool fits() const { return !request.memory || plan.memory() <= *request.memory; }
};

std::string to_text(const PlanReport& report);
std::string to_json_text(const PlanReport& report);
/// Prints the report as its request says. Returns the exit code: 0, or 1 if it does not fit.
int print_plan(const PlanReport& report);

}  // namespace zerorun
