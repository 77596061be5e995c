// A program run by one rank with the engine, and compared with what plain LibTorch found.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "comm/communicator.h"
#include "tests/random_programs/model.h"

namespace zerorun::testing {

/// What the engine did was not what it should have done.
struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws Mismatch, or whatever the engine threw where it should not have. Every message begins with the
/// operation.
void run_with_engine(const Program& program, const std::shared_ptr<Communicator>& communicator,
                     const Journal& expected);

/// As a ds_config.json.
std::string config_of(const Setup& setup);

}  // namespace zerorun::testing
