// Runs a program on one rank with the engine, and compares the results with those of plain LibTorch.
#pragma once

#include <filesystem>
#include <memory>

#include "comm/communicator.h"
#include "tests/random_programs/model.h"

namespace zerorun::testing {

/// Throws Mismatch if a result differs from `expected`, or if the engine throws where the plain run did not.
/// The message begins with the operation. Checkpoints are in `folder`.
void run_with_engine(const Program& program, const std::shared_ptr<Communicator>& communicator,
                     const std::filesystem::path& folder, const Journal& expected);

}  // namespace zerorun::testing
