// Finds a shorter program that fails too.
#pragma once

#include <chrono>
#include <functional>

#include "tests/random_programs/program.h"

namespace zerorun::testing {

/// Removes or simplifies one thing after the other while the program still fails, within `budget`.
Program shrink(Program program, const std::function<bool(const Program&)>& fails,
               std::chrono::seconds budget);

}  // namespace zerorun::testing
