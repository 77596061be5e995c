// Runs a program on one rank with the engine and compares it with the results of plain LibTorch.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "comm/communicator.h"
#include "tests/random_programs/model.h"

namespace zerorun::testing {

/// The engine's behaviour differs from the expected one.
struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws Mismatch, also for an exception that the engine should not have thrown. Every message begins with
/// the operation.
void run_with_engine(const Program& program, const std::shared_ptr<Communicator>& communicator,
                     const Journal& expected);

/// The ds_config.json of `setup`.
std::string config_of(const Setup& setup);

}  // namespace zerorun::testing
