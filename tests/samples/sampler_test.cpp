#include "samples/gpt2/sampler.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace samples;
namespace {

using Catch::Matchers::Contains;

// Returns the offsets of all samples of one optimizer step, ordered by micro-step and then by rank.
std::vector<int64_t> step_offsets(const SamplerOptions& options, int64_t step) {
  const Sampler sampler(options);
  std::vector<int64_t> offsets;
  for (int64_t micro_step = 0; micro_step < options.accumulation; ++micro_step) {
    for (int64_t rank = 0; rank < options.world_size; ++rank) {
      const std::vector<int64_t> part = sampler.offsets(step, micro_step, rank);
      offsets.insert(offsets.end(), part.begin(), part.end());
    }
  }
  return offsets;
}

TEST_CASE("permute is a permutation of every size") {
  std::vector<int64_t> sizes(300);
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = static_cast<int64_t>(i) + 1;
  sizes.insert(sizes.end(), {1023, 1024, 1025, 65'536, 65'537, 100'003});
  for (const int64_t size : sizes) {
    std::vector<bool> seen(size);
    for (int64_t index = 0; index < size; ++index) {
      const int64_t value = permute(index, size, 17);
      REQUIRE(0 <= value);
      REQUIRE(value < size);
      REQUIRE_FALSE(seen[value]);
      seen[value] = true;
    }
  }
}

TEST_CASE("permute spreads an index over all places as the key changes") {
  constexpr int64_t kSize = 10, kKeys = 10'000;
  for (int64_t index = 0; index < kSize; ++index) {
    std::map<int64_t, int64_t> counts;
    for (int64_t key = 0; key < kKeys; ++key) ++counts[permute(index, kSize, key)];
    for (int64_t place = 0; place < kSize; ++place) {
      CHECK(counts[place] > 850);  // 1000 expected, standard deviation 30
      CHECK(counts[place] < 1150);
    }
  }
}

TEST_CASE("permute works for sizes beyond 32 bits") {
  const int64_t size = (int64_t{1} << 40) + 12345;
  std::set<int64_t> values;
  for (int64_t index = 0; index < 1000; ++index) values.insert(permute(size - 1 - index, size, 5));
  CHECK(values.size() == 1000);
  CHECK(*values.begin() >= 0);
  CHECK(*values.rbegin() < size);
}

TEST_CASE("every window is read once in an epoch") {
  for (const int64_t windows : {6, 7, 11, 12, 100, 1001}) {
    const SamplerOptions options{.corpus_size = windows * 16 + 9, .seq = 16, .micro_batch = 6, .seed = 1};
    const Sampler sampler(options);
    REQUIRE(sampler.windows() == windows);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> seen;
      for (int64_t sample = 0; sample < windows; ++sample) {
        const int64_t offset = sampler.offset(epoch * windows + sample);
        CHECK(offset % 16 == 0);
        CHECK(offset + 16 <= options.corpus_size);
        CHECK(seen.insert(offset).second);
      }
    }
  }
}

TEST_CASE("a step's global batch does not depend on world size, micro-batch or accumulation") {
  for (const bool sequential : {false, true}) {
    const SamplerOptions one{.corpus_size = 5000,
                             .seq = 20,
                             .micro_batch = 12,
                             .accumulation = 1,
                             .world_size = 1,
                             .seed = 3,
                             .sequential = sequential};
    for (const auto& [micro_batch, accumulation, world_size] :
         {std::array<int64_t, 3>{6, 1, 2}, {4, 1, 3}, {1, 3, 4}, {2, 2, 3}, {1, 1, 12}}) {
      SamplerOptions other = one;
      other.micro_batch = micro_batch;
      other.accumulation = accumulation;
      other.world_size = world_size;
      for (const int64_t step : {0, 1, 7, 20, 43})
        CHECK(step_offsets(other, step) == step_offsets(one, step));
    }
  }
}

TEST_CASE("seeds and epochs have orders of their own") {
  const SamplerOptions options{.corpus_size = 6400, .seq = 64, .micro_batch = 100, .seed = 1};
  SamplerOptions other_seed = options;
  other_seed.seed = 2;
  const std::vector<int64_t> epoch0 = step_offsets(options, 0), epoch1 = step_offsets(options, 1);
  CHECK(epoch0 != epoch1);
  CHECK(epoch0 != step_offsets(other_seed, 0));
  CHECK(epoch1 != step_offsets(other_seed, 0));  // seed 2 does not start where seed 1 continues
  CHECK_FALSE(std::is_sorted(epoch0.begin(), epoch0.end()));
}

TEST_CASE("the sequential order reads window after window and wraps at size - seq") {
  const SamplerOptions options{.corpus_size = 100,
                               .seq = 32,
                               .micro_batch = 2,
                               .accumulation = 2,
                               .world_size = 2,
                               .sequential = true};
  const Sampler sampler(options);
  CHECK(sampler.offsets(0, 0, 0) == std::vector<int64_t>{0, 32});
  CHECK(sampler.offsets(0, 0, 1) == std::vector<int64_t>{64, 96 % 68});
  CHECK(sampler.offsets(0, 1, 0) == std::vector<int64_t>{128 % 68, 160 % 68});
  CHECK(sampler.offsets(1, 1, 1) == std::vector<int64_t>{14 * 32 % 68, 15 * 32 % 68});
}

TEST_CASE("too few samples for a step name both numbers and the remedy") {
  const SamplerOptions options{
      .corpus_size = 329, .seq = 32, .micro_batch = 4, .accumulation = 1, .world_size = 3};
  const std::string message = user_error([&] { Sampler{options}; });
  CHECK_THAT(message, Contains("10 samples") && Contains("train_batch_size 12") && Contains("--data") &&
                          Contains("fewer ranks"));

  SamplerOptions enough = options;
  enough.corpus_size = 12 * 32;
  CHECK(Sampler(enough).windows() == 12);
}

TEST_CASE("the sequential order needs more text than one sample") {
  SamplerOptions options{.corpus_size = 32, .seq = 32, .sequential = true};
  CHECK_THAT(user_error([&] { Sampler{options}; }), Contains("32 tokens") && Contains("--sequential"));
  options.corpus_size = 33;
  CHECK(Sampler(options).offset(5) == 0);
}

}  // namespace
}  // namespace zerorun::testing
