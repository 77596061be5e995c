// Replays recorded DeepSpeed runs (data/traces.json, README.md). CHECKs losses, norms, learning rates, loss
// scales, skipped steps and final parameters.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {

/// Allowed relative differences from DeepSpeed's values.
struct Tolerance {
  double loss;
  double norm;
  double matrix;  // final l2 norm of a matrix
  double vector;  // final l2 norm of a vector; less exact, since biases start at 0 and are only the sum of a
                  // few updates
  double noise;   // final l2 norm of a parameter whose gradient is zero except for rounding
};

const nlohmann::json& traces();
/// The traces of runs whose weights and optimizer states are bfloat16 (data/state_traces.json).
nlohmann::json traces_of_narrow_states();
/// Returns the tolerance of README.md for the trace `name`.
Tolerance tolerance_of(const std::string& name);

/// Trains as `trace` says and CHECKs the results. `communicator_for`: as in RunOptions.
void replay(const nlohmann::json& trace, const Tolerance& tolerance,
            decltype(RunOptions::communicator_for) communicator_for = {});

/// Whether one rank with gradient accumulation can reproduce the trace. It cannot if the trace's ranks add
/// gradients, since accumulation averages them. Nor can it where the average of two fp16 gradients is within
/// the range and their sum is not: at stages 0 and 1 one rank sends the sum of its micro-steps. That happens
/// in fp16_s1_dyn.
bool replays_on_one_rank(const nlohmann::json& trace);
/// Returns the trace for one rank, which processes all ranks' micro-batches by gradient accumulation.
nlohmann::json on_one_rank(nlohmann::json trace);

}  // namespace zerorun::testing
