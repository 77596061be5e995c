// Chooses the settings that a test tries, of all combinations of choices.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

namespace zerorun::testing {

/// Whether the environment has ZERORUN_TEST_ALL: tests try all they can, however long it takes.
bool tries_all();

/// Combinations of one choice from each axis; axis i has choices 0 to sizes[i] - 1. In each pair of axes
/// every choice of one occurs with every choice of the other. The function returns few such combinations,
/// always the same, or all of them if tries_all(). If the environment has ZERORUN_TEST_BOTH_TRANSPORTS, the
/// program runs twice, with ZERORUN_TEST_SHARED_MEMORY and without: then the two runs are one more axis, and
/// each has its own settings.
std::vector<std::vector<int>> chosen_settings(const std::vector<int>& sizes);

/// The same for a structured binding: for (const auto [stage, ranks, overlap] : settings(4, 3, 2))
template <typename... Sizes>
std::vector<std::array<int, sizeof...(Sizes)>> settings(Sizes... sizes) {
  std::vector<std::array<int, sizeof...(Sizes)>> result;
  for (const std::vector<int>& setting : chosen_settings({static_cast<int>(sizes)...}))
    std::copy(setting.begin(), setting.end(), result.emplace_back().begin());
  return result;
}

}  // namespace zerorun::testing
