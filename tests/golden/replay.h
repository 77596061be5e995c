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
/// Returns the tolerance of README.md for the trace `name`.
Tolerance tolerance_of(const std::string& name);

/// Trains as `trace` says and CHECKs the results. `communicator_for`: as in RunOptions.
void replay(const nlohmann::json& trace, const Tolerance& tolerance,
            decltype(RunOptions::communicator_for) communicator_for = {});

/// Returns the trace for one rank, which processes all ranks' micro-batches by gradient accumulation.
nlohmann::json on_one_rank(nlohmann::json trace);

}  // namespace zerorun::testing
