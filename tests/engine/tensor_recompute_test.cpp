// Tests that layers which are recomputed in backward train, split among tensor ranks, like the whole module
// in a plain process that recomputes nothing.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "activations/recomputable.h"
#include "tests/engine/tensor_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

constexpr int kStepsOfRecomputed = 5;
const std::vector<DecoderOptions> kRecomputedModels = {
    {.fused = true},
    {.gated = true, .head_norms = true, .tied = true, .heads = 16, .key_heads = 8},
    {.lora = true}};

struct RecomputedRun {
  TrainedDecoder trained;
  double sent = 0;  // elements, among tensor ranks
};

RecomputedRun train_split(const DecoderOptions& options, const std::string& config, const MeshSizes& mesh,
                          const std::shared_ptr<Communicator>& communicator, bool plain_backward) {
  Decoder model(options);
  Engine engine = decoder_engine(*model, config, mesh, communicator, plan_of(options));
  Volume& volume = engine.mesh().along(MeshAxis::tensor).volume();
  volume.reset();
  RecomputedRun run;
  run.trained = train_decoder(engine, model, kStepsOfRecomputed, 0, plain_backward);
  for (int kind = 0; kind < kCollectiveKinds; ++kind)
    run.sent += volume.elements(static_cast<Collective>(kind));
  return run;
}

// How many elements of a micro-step tensor ranks sum more: the results of attention and MLP, and of an
// adapter of attention.
double more_in_micro_step(const DecoderOptions& options) {
  const int64_t tokens = 2 * 7, result = tokens * options.hidden();
  const int64_t of_layer = 2 * result + (options.lora ? tokens * 3 : 0);
  return static_cast<double>(options.layers * of_layer);
}

}  // namespace

TEST_CASE("Layers split among tensor ranks and recomputed in backward train like a plain process") {
  const bool shares_memory = std::getenv("ZERORUN_TEST_SHARED_MEMORY") != nullptr;
  const std::vector<MeshSizes> meshes = {kTwoByTwo, shares_memory ? MeshSizes{2, 3, 1} : kTwoTensorRanks};
  for (const auto [which, shape, stage, adam, accumulates, plain_backward] :
       settings(static_cast<int>(kRecomputedModels.size()), static_cast<int>(meshes.size()), 4, 2, 2, 2)) {
    const DecoderOptions& options = kRecomputedModels[static_cast<size_t>(which)];
    const MeshSizes& mesh = meshes[static_cast<size_t>(shape)];
    CAPTURE(which, describe(mesh), stage, adam, accumulates, plain_backward);
    const int accumulation = 1 + accumulates;
    const std::string optimizer =
        adam ? R"({"type": "AdamW", "params": {"lr": 0.001, "weight_decay": 0}})" : kSgd;
    const TrainedDecoder expected =
        train_plain(options, optimizer, mesh.data, accumulation, kStepsOfRecomputed);
    const std::string config = decoder_config(stage, optimizer, accumulation);
    const std::string recomputing =
        decoder_config(stage, optimizer, accumulation, R"(, "zerorun": {"recompute": {"every": 1}})");
    CHECK_NOTHROW(run_ranks(ranks_of(mesh), [&, &plain = plain_backward](auto communicator) {
      const RecomputedRun recomputed = train_split(options, recomputing, mesh, communicator, plain);
      const RecomputedRun kept = train_split(options, config, mesh, communicator, plain);
      expect_like(recomputed.trained, expected, optimizer);
      expect(recomputed.trained.losses == kept.trained.losses, "the bits of losses without recomputation");
      expect(recomputed.sent - kept.sent ==
                 kStepsOfRecomputed * accumulation * (mesh.tensor - 1) * more_in_micro_step(options),
             "what tensor ranks send more");
    }));
  }
}

TEST_CASE("Tensor ranks that keep parts of a block's inputs train with the same bits") {
  const std::string parts = R"(, "activation_checkpointing": {"partition_activations": true})";
  const TemporaryFolder folder;
  const std::string parts_in_file =
      parts + R"(, "zerorun": {"recompute": {"every": 1, "nvme_path": ")" + std::string(folder / "") + "\"}}";
  for (const auto [stage, ranks, accumulates] : settings(4, 2, 2)) {
    const MeshSizes mesh{1, 2 + ranks, 1};
    CAPTURE(stage, describe(mesh), accumulates);
    const int accumulation = 1 + accumulates;
    CHECK_NOTHROW(run_ranks(ranks_of(mesh), [&, &stage = stage](auto communicator) {
      const DecoderOptions options = {.fused = true};
      const RecomputedRun whole = train_split(
          options, decoder_config(stage, kSgd, accumulation, R"(, "activation_checkpointing": {})"), mesh,
          communicator, false);
      const RecomputedRun partitioned =
          train_split(options, decoder_config(stage, kSgd, accumulation, parts), mesh, communicator, false);
      const RecomputedRun in_file = train_split(
          options, decoder_config(stage, kSgd, accumulation, parts_in_file), mesh, communicator, false);
      const std::string in_buffer =
          R"(, "activation_checkpointing": {"partition_activations": true, "contiguous_memory_optimization": true,)"
          R"( "number_checkpoints": 2})";
      const RecomputedRun contiguous = train_split(
          options, decoder_config(stage, kSgd, accumulation, in_buffer), mesh, communicator, false);
      expect(partitioned.trained.losses == whole.trained.losses, "the same bits of losses");
      expect(contiguous.trained.losses == whole.trained.losses, "the same bits with parts in one buffer");
      expect(in_file.trained.losses == whole.trained.losses, "the same bits with parts in a file");
      expect(in_file.sent == partitioned.sent, "the same messages with parts in a file");
      // A gather of the input of each layer, padded to equal parts.
      const int64_t input = 2 * 7 * options.hidden(), part = (input + mesh.tensor - 1) / mesh.tensor;
      const auto gathers = static_cast<double>(kStepsOfRecomputed * accumulation * options.layers);
      expect(partitioned.sent - whole.sent == gathers * static_cast<double>(part * (mesh.tensor - 1)),
             "what tensor ranks send more");
    }));
  }
}

TEST_CASE("Tensor ranks that give a block different inputs cannot keep parts of them: the block is named") {
  run_ranks(2, [&](auto communicator) {
    DecoderOptions options = {.fused = true};
    Decoder model(options);
    const std::string config =
        decoder_config(1, kSgd, 1, R"(, "activation_checkpointing": {"partition_activations": true})");
    Engine engine = decoder_engine(*model, config, kTwoTensorRanks, communicator, plan_of(options));
    const auto layers = model->named_children()["layers"]->children();
    const at::Tensor x = model->embed(tokens_of(options, 0, 0, 0)) + communicator->rank();
    const at::Tensor y = recomputable(
        *layers[0], [&](const at::Tensor& input) { return model->layer(0, input); }, x);
    expect_throws([&] { y.sum().backward(); }, "tensor ranks give block layers.0 different values as input 1",
                  "different inputs");
    model->zero_grad();
  });
}

}  // namespace zerorun::testing
