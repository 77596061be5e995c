// Tests DataPosition: the union over ranks and micro-steps is the next part of the order, at every number of
// ranks, across epochs and checkpoints.
#include "engine/data_position.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <numeric>
#include <random>

#include "base/error.h"
#include "base/permutation.h"
#include "tests/engine/state_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

// The samples that `ranks` ranks use in the next micro-steps, in rank order.
std::vector<int64_t> use(const std::vector<uint8_t>& saved, int64_t data, uint64_t seed, int64_t ranks,
                         int64_t micro_batch, int64_t micro_steps, std::vector<uint8_t>& saved_after) {
  std::vector<int64_t> used;
  std::vector<DataPosition> positions;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    positions.emplace_back(data, seed);
    positions.back().divide({.micro_batch = micro_batch, .ranks = ranks, .rank = rank});
    if (!saved.empty()) positions.back().restore(saved);
  }
  for (int64_t step = 0; step < micro_steps; ++step) {
    for (DataPosition& position : positions) {
      const std::vector<int64_t> samples = position.samples();
      CHECK(static_cast<int64_t>(samples.size()) == micro_batch);
      used.insert(used.end(), samples.begin(), samples.end());
    }
    for (DataPosition& position : positions) position.advance();
  }
  for (const DataPosition& position : positions) CHECK(position.saved() == positions.front().saved());
  saved_after = positions.front().saved();
  return used;
}

}  // namespace

TEST_CASE("DataPosition: ranks of any number use every sample exactly once an epoch, in one order") {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 60; ++trial) {
    const auto data = static_cast<int64_t>(1 + random() % 200);
    const uint64_t seed = random();
    std::vector<uint8_t> saved;
    std::vector<int64_t> used;
    // Goes on at another number of ranks and with another micro-batch after any micro-step.
    while (static_cast<int64_t>(used.size()) < 4 * data) {
      const auto ranks = static_cast<int64_t>(1 + random() % 8),
                 micro_batch = static_cast<int64_t>(1 + random() % 5),
                 micro_steps = static_cast<int64_t>(1 + random() % 4);
      std::vector<uint8_t> after;
      const auto part = use(saved, data, seed, ranks, micro_batch, micro_steps, after);
      used.insert(used.end(), part.begin(), part.end());
      saved = after;
    }
    CAPTURE(trial, data);
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      std::vector<int64_t> of_epoch(used.begin() + epoch * data, used.begin() + (epoch + 1) * data);
      // The order that is documented: a permutation of the epoch's own.
      for (int64_t index = 0; index < data; ++index)
        CHECK(of_epoch[static_cast<size_t>(index)] == shuffled_sample(epoch * data + index, data, seed));
      std::ranges::sort(of_epoch);
      std::vector<int64_t> all(static_cast<size_t>(data));
      std::iota(all.begin(), all.end(), int64_t{0});
      CHECK(of_epoch == all);
    }
    DataPosition end(data, seed);
    end.restore(saved);
    CHECK(end.used() == static_cast<int64_t>(used.size()));
    CHECK(end.epoch() == end.used() / data);
    CHECK(end.index() == end.used() % data);
  }
}

TEST_CASE("DataPosition: the order differs between epochs and seeds") {
  const auto order = [](int64_t epoch, uint64_t seed) {
    std::vector<int64_t> samples;
    for (int64_t index = 0; index < 100; ++index)
      samples.push_back(shuffled_sample(100 * epoch + index, 100, seed));
    return samples;
  };
  CHECK(order(0, 1) != order(1, 1));
  CHECK(order(0, 1) != order(0, 2));
  CHECK(order(3, 2) == order(3, 2));
}

TEST_CASE("DataPosition: reading ahead gives what comes later") {
  DataPosition now(37, 5);
  now.divide({.micro_batch = 4, .ranks = 3, .rank = 1});
  DataPosition later(37, 5);
  later.divide({.micro_batch = 4, .ranks = 3, .rank = 1});
  for (int64_t ahead = 0; ahead < 10; ++ahead) {
    CHECK(now.samples(ahead) == later.samples());
    CHECK(now.numbers(ahead) ==
          std::vector<int64_t>{12 * ahead + 4, 12 * ahead + 5, 12 * ahead + 6, 12 * ahead + 7});
    later.advance();
  }
  now.advance(10);
  CHECK(now.used() == later.used());
}

TEST_CASE("DataPosition: mistakes, other data and hostile bytes") {
  CHECK_THROWS_WITH(DataPosition(0), Contains("the data has no samples"));
  DataPosition position(10, 1);
  CHECK_THROWS_AS(position.set_used(-1), UserError);
  position.set_used(25);
  CHECK(position.epoch() == 2);
  CHECK(position.index() == 5);

  for (const DataPosition& other : {DataPosition(11, 1), DataPosition(10, 2)}) {
    DataPosition own = other;
    own.restore(position.saved());
    for (const std::function<void()>& action :
         {std::function<void()>([&] { own.samples(); }), std::function<void()>([&] { own.numbers(); }),
          std::function<void()>([&] { own.advance(); })})
      CHECK_THROWS_WITH(action(), Contains("trained on other data") && Contains("10 samples and seed 1"));
    own.set_used(0);
    CHECK(own.numbers() == std::vector<int64_t>{0});
  }

  std::mt19937_64 random(2);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<uint8_t> bytes = position.saved();
    if (trial % 3 == 0) bytes.resize(random() % 64);
    for (uint8_t& byte : bytes) {
      if (random() % 4 == 0) byte = static_cast<uint8_t>(random());
    }
    DataPosition own(10, 1);
    try {
      own.restore(bytes);
      CHECK(own.used() >= 0);
      CHECK(own.index() >= 0);
    } catch (const UserError& error) {
      CHECK_THAT(error.what(), Contains("position in the data"));
      CHECK(own.used() == 0);
    }
  }
}

TEST_CASE("Engine::attach: a checkpoint has the position, between micro-steps too") {
  const TemporaryFolder folder;
  constexpr int64_t kData = 17;
  constexpr char kTwo[] = R"(, "gradient_accumulation_steps": 2)";
  const std::filesystem::path old = folder / "old", saves = folder / "saves", within = folder / "within";
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(all_state_cases().front(), 2, "fp32", communicator, kTwo);
    training.engine->save_checkpoint(old);  // without a position
    DataPosition position(kData, 4);
    training.engine->attach(position);
    const int64_t rank = communicator->rank();
    expect(position.numbers() == std::vector<int64_t>{rank}, "another division");
    for (int micro_step = 0; micro_step < 10; ++micro_step) {
      training.step(micro_step);
      position.advance();
    }
    training.engine->save_checkpoint(saves);
    training.engine->wait_for_checkpoint();
    training.step(10);  // the other half of the optimizer step's samples is left
    position.advance();
    training.engine->save_checkpoint(within);
    training.engine->wait_for_checkpoint();
  });
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(all_state_cases().front(), 2, "fp32", communicator, kTwo);
    DataPosition position(kData, 4);
    training.engine->attach(position);
    training.engine->load_newest(within);
    expect(position.used() == 5 * 2 * 2 + 2, "another position within a step");
  });
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
      StateTraining training(all_state_cases().front(), 1, "fp32", communicator, kTwo);
      DataPosition position(kData, 4);
      training.engine->attach(position);
      training.engine->load_newest(saves);
      expect(position.used() == 5 * 2 * 2 && position.epoch() == 1 && position.index() == 3,
             "another position");
      expect(position.numbers() == std::vector<int64_t>{20 + communicator->rank()}, "another division");
      position.set_used(9);
      training.engine->load_checkpoint(old);
      expect(position.used() == 9, "a checkpoint without a position has changed it");
      training.engine->load_checkpoint(saves, "", {.counters = false});
      expect(position.used() == 9, "changed although counters are not wanted");
    });
  }
}

}  // namespace zerorun::testing
