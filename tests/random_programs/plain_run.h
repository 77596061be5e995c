// A program run by plain LibTorch: what every rank must find.
#pragma once

#include <vector>

#include "tests/random_programs/model.h"

namespace zerorun::testing {

/// What each rank comes by. In the caller's thread.
std::vector<Journal> run_plainly(const Program& program);

// Parts of the engine's messages.
inline constexpr const char* kStepInNoSync = "inside a no_sync() scope";
inline constexpr const char* kStepInScope = "inside a GatheredParameters scope";
inline constexpr const char* kStepWithoutBackward = "without engine.backward(loss) before it";
inline constexpr const char* kFailedBefore = "that threw";
inline constexpr const char* kScaleAtMinimum = "the loss scale is at its minimum";
inline constexpr const char* kScheduleThrows = "thrown by the schedule";

}  // namespace zerorun::testing
