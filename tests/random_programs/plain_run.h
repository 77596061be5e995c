// Runs a program with plain LibTorch and notes the results that every rank must have.
#pragma once

#include <vector>

#include "tests/random_programs/model.h"

namespace zerorun::testing {

/// Runs all ranks in the caller's thread. Returns the notes of each rank.
std::vector<Journal> run_plainly(const Program& program);

}  // namespace zerorun::testing
