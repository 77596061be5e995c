// Runs a program on one rank with the engine, and compares the results with those of plain LibTorch.
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

/// Throws Mismatch if a result differs from `expected`, or if the engine throws where the plain run did not.
/// The message begins with the operation.
void run_with_engine(const Program& program, const std::shared_ptr<Communicator>& communicator,
                     const Journal& expected);

/// The ds_config.json text of `setup`.
std::string config_of(const Setup& setup);

}  // namespace zerorun::testing
