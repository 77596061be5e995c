// Tests which settings the tests of the engine try (tests/support/settings.h).
#include "tests/support/settings.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <set>

namespace zerorun::testing {

TEST_CASE("settings: every pair of choices occurs, in few settings; ZERORUN_TEST_ALL gives all") {
  unsetenv("ZERORUN_TEST_ALL");
  const std::vector<int> sizes = {7, 3, 2, 4};
  std::set<std::vector<int>> pairs;
  const auto chosen = chosen_settings(sizes);
  for (const std::vector<int>& setting : chosen) {
    for (int axis = 0; axis < 4; ++axis) {
      REQUIRE(setting[axis] < sizes[axis]);
      for (int other = axis + 1; other < 4; ++other)
        pairs.insert({axis, other, setting[axis], setting[other]});
    }
  }
  CHECK(pairs.size() == 7 * 3 + 7 * 2 + 7 * 4 + 3 * 2 + 3 * 4 + 2 * 4);
  CHECK(chosen.size() < 7 * 4 + 7);  // 7 x 4 are needed for the two largest axes
  CHECK(chosen == chosen_settings(sizes));
  CHECK(settings(5).size() == 5);

  std::map<std::vector<int>, int> times;  // how often the same choices of the short axes occur
  for (const auto& [row, a, b, c, d] : settings(57, 4, 6, 2, 2)) CHECK(++times[{a, b, c, d}] <= 12);
  CHECK(times.size() > 80);  // of 96

  setenv("ZERORUN_TEST_ALL", "1", 1);
  const auto all = settings(7, 3, 2, 4);
  CHECK(std::set(all.begin(), all.end()).size() == 7 * 3 * 2 * 4);
  unsetenv("ZERORUN_TEST_ALL");
}

}  // namespace zerorun::testing
