// Runs a program with plain LibTorch and notes the results that every rank must have.
#pragma once

#include <vector>

#include "tests/random_programs/model.h"

namespace zerorun::testing {

/// Runs all ranks in the caller's thread. Returns the notes of each rank.
std::vector<Journal> run_plainly(const Program& program);

// Parts of the messages of errors that the engine must throw.
inline constexpr const char* kStepInNoSync = "inside a no_sync() scope";
inline constexpr const char* kStepInScope = "inside a GatheredParameters scope";
inline constexpr const char* kStepWithoutBackward = "without an earlier backward";
inline constexpr const char* kScaleAtMinimum = "the loss scale is at its minimum";
inline constexpr const char* kScheduleThrows = "thrown by the schedule";

}  // namespace zerorun::testing
