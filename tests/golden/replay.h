// Replays a recorded DeepSpeed run (data/traces.json, README.md) and CHECKs losses, norms, learning rates,
// loss scales, skipped steps and final parameters.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {

/// Relative differences that are allowed.
struct Tolerance {
  double loss;
  double norm;
  double matrix;  // of a parameter's l2 norm in the end
  double vector;  // likewise; biases start at 0, so that all they are is the sum of a few updates
  double noise;   // likewise, of what has a gradient of zero but for rounding
};

const nlohmann::json& traces();
/// That of README.md for the trace of this name.
Tolerance tolerance_of(const std::string& name);

/// `communicator_for`: as in RunOptions.
void replay(const nlohmann::json& trace, const Tolerance& tolerance,
            decltype(RunOptions::communicator_for) communicator_for = {});

/// The same run on one rank: what the ranks of the trace did at a time, it does one after the other.
nlohmann::json on_one_rank(nlohmann::json trace);

}  // namespace zerorun::testing
