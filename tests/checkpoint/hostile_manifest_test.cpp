// Tests that manifests of split parameters with random changes are read right, or refused.
#include "tests/checkpoint/hostile_manifest.h"

#include <catch2/catch.hpp>
#include <map>

#include "tests/support/settings.h"

namespace zerorun::testing {

TEST_CASE("A manifest of split parameters with any change is refused, reported as faulty, or read whole") {
  REQUIRE(read_manifest(manifest_of_split()) == Reading::read);
  std::mt19937_64 random(11);
  std::map<Reading, int> seen;
  const int tries = tries_all() ? 50'000 : 1000;
  for (int number = 0; number < tries; ++number) {
    std::string text = manifest_of_split();
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) text = mutate_manifest(text, random);
    CAPTURE(number, text);
    Reading found = Reading::read;
    REQUIRE_NOTHROW(found = read_manifest(text));
    ++seen[found];
  }
  std::printf("%d manifests refused, %d with faults, %d read\n", seen[Reading::refused],
              seen[Reading::faulty], seen[Reading::read]);
  for (const Reading each : {Reading::refused, Reading::faulty, Reading::read})
    CHECK(seen[each] > tries / 100);
}

}  // namespace zerorun::testing
