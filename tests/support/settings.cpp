#include "tests/support/settings.h"

#include <cstdlib>
#include <random>
#include <set>
#include <utility>

namespace zerorun::testing {
namespace {

struct Pair {
  size_t axis, other_axis;
  int choice, other_choice;
  auto operator<=>(const Pair&) const = default;
};

std::vector<Pair> pairs_of(const std::vector<int>& setting) {
  std::vector<Pair> pairs;
  for (size_t axis = 0; axis < setting.size(); ++axis) {
    for (size_t other = axis + 1; other < setting.size(); ++other)
      pairs.push_back({axis, other, setting[axis], setting[other]});
  }
  return pairs;
}

std::vector<std::vector<int>> all_settings(const std::vector<int>& sizes) {
  std::vector<std::vector<int>> all;
  std::vector<int> setting(sizes.size());
  for (size_t axis = 0; axis < sizes.size();) {
    if (axis == 0) all.push_back(setting);
    if (++setting[axis] < sizes[axis]) {
      axis = 0;
    } else {
      setting[axis++] = 0;
    }
  }
  return all;
}

// Shuffles, always in the same way (std::shuffle() differs between standard libraries).
void shuffle(std::vector<std::vector<int>>& all) {
  std::mt19937_64 random(1);
  for (size_t end = all.size(); end > 1; --end) std::swap(all[end - 1], all[random() % end]);
}

bool has(const char* variable) {
  return std::getenv(variable) != nullptr;
}

std::vector<std::vector<int>> covering_settings(const std::vector<int>& sizes) {
  std::vector<std::vector<int>> all = all_settings(sizes);
  if (sizes.size() < 2 || tries_all()) return all;
  // In the order of all_settings() most choices of a long axis would meet the same few choices of all other
  // axes.
  shuffle(all);
  std::vector<std::vector<int>> chosen;
  std::set<Pair> seen;
  // First come the settings of which all pairs are new, then those with one pair less that is new, and so on.
  for (size_t least = pairs_of(sizes).size(); least > 0; --least) {
    for (const std::vector<int>& setting : all) {
      const std::vector<Pair> pairs = pairs_of(setting);
      const auto count = std::ranges::count_if(pairs, [&](const Pair& pair) { return !seen.contains(pair); });
      if (static_cast<size_t>(count) < least) continue;
      chosen.push_back(setting);
      seen.insert(pairs.begin(), pairs.end());
    }
  }
  return chosen;
}

// The program runs once with and once without shared memory, which is one more axis: this run has one of its
// choices.
std::vector<std::vector<int>> settings_of_this_run(std::vector<int> sizes) {
  const int own = has("ZERORUN_TEST_SHARED_MEMORY") ? 1 : 0;
  sizes.push_back(2);
  std::vector<std::vector<int>> chosen = covering_settings(sizes);
  std::erase_if(chosen, [&](const std::vector<int>& setting) { return setting.back() != own; });
  for (std::vector<int>& setting : chosen) setting.pop_back();
  return chosen;
}

}  // namespace

bool tries_all() {
  return has("ZERORUN_TEST_ALL");
}

std::vector<std::vector<int>> chosen_settings(const std::vector<int>& sizes) {
  return has("ZERORUN_TEST_BOTH_TRANSPORTS") && !tries_all() ? settings_of_this_run(sizes)
                                                             : covering_settings(sizes);
}

}  // namespace zerorun::testing
