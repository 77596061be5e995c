// Tests that models whose layers are divided among pipeline stages train like the whole model in one plain
// process.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/pipeline_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
namespace {

// `found` has the parameters of one stage.
void expect_like_stage(const TrainedDecoder& found, TrainedDecoder expected) {
  expect(!found.parameters.empty(), "the stage has parameters");
  std::erase_if(expected.parameters,
                [&](const auto& item) { return !found.parameters.contains(item.first); });
  expect(expected.parameters.size() == found.parameters.size(), "names of the whole model");
  expect_like(found, expected, kSgd);
}

const std::vector<MeshSizes> kMeshesOf8 = {{1, 1, 8}, {2, 1, 4}, {1, 2, 4}, {4, 1, 2}, {2, 2, 2},
                                           {1, 4, 2}, {8, 1, 1}, {4, 2, 1}, {2, 4, 1}, {1, 8, 1}};
const DecoderOptions kDeep = {.tied = true, .layers = 8};

}  // namespace

TEST_CASE("A divided model trains like the whole one in a plain process") {
  std::map<int, TrainedDecoder> plain;  // by data size
  // All combinations, or each mesh with several stages once, at each ZeRO stage twice.
  std::vector<std::pair<int, int>> chosen;
  for (int shape = 0; shape < static_cast<int>(kMeshesOf8.size()); ++shape) {
    for (int stage = 0; tries_all() && stage < 4; ++stage) chosen.emplace_back(shape, stage);
  }
  const bool shares_memory = std::getenv("ZERORUN_TEST_SHARED_MEMORY") != nullptr;
  if (!tries_all()) chosen = {{1, 3}, {3, 2}, {4, 1}};
  if (!tries_all() && !shares_memory) chosen.insert(chosen.end(), {{0, 3}, {0, 0}, {1, 2}, {2, 1}, {5, 0}});
  for (const auto& [shape, stage] : chosen) {
    const MeshSizes& mesh = kMeshesOf8[shape];
    CAPTURE(describe(mesh), stage);
    TrainedDecoder& expected = plain[mesh.data];
    if (expected.losses.empty()) expected = train_plain(kDeep, kSgd, mesh.data, 8, 3);
    CHECK(*std::ranges::max_element(expected.norms) > kClip);
    CHECK_NOTHROW(run_ranks(8, [&, stage = stage](std::shared_ptr<Communicator> communicator) {
      Decoder model(kDeep);
      Engine engine = divided_engine(model, decoder_config(stage, kSgd, 8), mesh, std::move(communicator));
      expect_like_stage(train_divided(engine, model, 3), expected);
    }));
  }
}

}  // namespace zerorun::testing
