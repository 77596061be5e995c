// Finds a shorter program that still fails.
#pragma once

#include <chrono>
#include <functional>

#include "tests/random_programs/program.h"

namespace zerorun::testing {

/// Repeats changes that remove or simplify a part of the program. Keeps a change if `fails` is true for the
/// changed program. Ends when no change can be kept, or after `budget`.
Program shrink(Program program, const std::function<bool(const Program&)>& fails,
               std::chrono::seconds budget);

}  // namespace zerorun::testing
