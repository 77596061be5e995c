// Tests that modules whose parameters are split among tensor ranks train like the whole module in one plain
// process.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tests/engine/tensor_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
namespace {

const std::vector<std::pair<std::string, DecoderOptions>> kModels = {
    {"GPT-2", {.tied = true}},
    {"GPT-2 with a fused projection", {.fused = true}},
    {"Llama", {.gated = true, .heads = 16, .key_heads = 8}},
    {"Qwen3", {.gated = true, .head_norms = true, .tied = true, .heads = 16, .key_heads = 8}},
    {"LoRA", {.lora = true}}};
const std::vector<std::string> kPlainOptimizers = {
    R"({"type": "SGD", "params": {"lr": 0.1}})",
    R"({"type": "AdamW", "params": {"lr": 0.001, "weight_decay": 0}})"};

}  // namespace

TEST_CASE("A module split among tensor ranks trains like the whole one in a plain process") {
  const bool shares_memory = std::getenv("ZERORUN_TEST_SHARED_MEMORY") != nullptr;
  std::vector<MeshSizes> meshes = {{2, 2, 1}, {2, 3, 1}, {2, 4, 1}};
  if (!shares_memory) meshes.insert(meshes.end(), {{1, 2, 1}, {1, 8, 1}});
  if (tries_all()) meshes.insert(meshes.end(), {{4, 2, 1}, {8, 1, 1}});
  for (const auto [which, shape, stage, adam, accumulates] :
       settings(static_cast<int>(kModels.size()), static_cast<int>(meshes.size()), 4, 2, 2)) {
    const auto& [name, options] = kModels[which];
    const MeshSizes& mesh = meshes[shape];
    CAPTURE(name, describe(mesh), stage, adam, accumulates);
    const int accumulation = 1 + accumulates, steps = adam ? 5 : 10;
    const std::string& optimizer = kPlainOptimizers[adam];
    TrainedDecoder expected;
    REQUIRE_NOTHROW(expected = train_plain(options, optimizer, mesh.data, accumulation, steps));
    CHECK(*std::ranges::max_element(expected.norms) > kClip);
    CHECK_NOTHROW(
        run_ranks(ranks_of(mesh), [&, &options = options](std::shared_ptr<Communicator> communicator) {
          Decoder model(options);
          Engine engine = decoder_engine(*model, decoder_config(stage, optimizer, accumulation), mesh,
                                         std::move(communicator), plan_of(options));
          expect_like(train_decoder(engine, model, steps), expected, optimizer);
        }));
  }
}

}  // namespace zerorun::testing
