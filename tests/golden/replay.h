// Replays a recorded DeepSpeed run (data/traces.json, README.md) and CHECKs losses, norms, learning rates,
// loss scales, skipped steps and final parameters.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {

/// Allowed relative differences.
struct Tolerance {
  double loss;
  double norm;
  double matrix;  // of a matrix's final l2 norm
  double vector;  // likewise, of others; biases start at 0, so they are only the sum of a few updates
  double noise;   // likewise, of parameters whose gradient is zero except for rounding
};

const nlohmann::json& traces();
/// The tolerance of README.md for the trace `name`.
Tolerance tolerance_of(const std::string& name);

/// `communicator_for`: as in RunOptions.
void replay(const nlohmann::json& trace, const Tolerance& tolerance,
            decltype(RunOptions::communicator_for) communicator_for = {});

/// The same run on one rank, which does in turn what the ranks of the trace did at the same time.
nlohmann::json on_one_rank(nlohmann::json trace);

}  // namespace zerorun::testing
