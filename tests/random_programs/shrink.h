// Finds a shorter program that fails too.
#pragma once

#include <chrono>
#include <functional>

#include "tests/random_programs/program.h"

namespace zerorun::testing {

/// The smallest one that leaving out or simplifying one thing after the other leads to, within `budget`.
Program shrink(Program program, const std::function<bool(const Program&)>& fails,
               std::chrono::seconds budget);

}  // namespace zerorun::testing
