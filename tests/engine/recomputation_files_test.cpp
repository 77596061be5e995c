// Tests recomputed blocks whose inputs are in a file until their backward (zerorun.recompute.nvme_path).
#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "activations/recomputable.h"
#include "base/error.h"
#include "checkpoint/file_system.h"
#include "checkpoint/state_header.h"
#include "engine/engine.h"
#include "engine/gathered_parameters.h"
#include "tests/engine/net.h"
#include "tests/engine/recomputed_model.h"
#include "tests/support/allocated_bytes.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

std::string in_file(const std::filesystem::path& folder, const std::string& how = R"("every": 1)") {
  return recomputing(how + R"(, "nvme_path": ")" + folder.string() + "\"");
}

constexpr int64_t kInput = 8 * 32 * 32 * 4;  // bytes
const std::string kSgd = R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}})";

at::Tensor many_tokens(uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randint(BlockModel::kVocab, {8, 32}, generator, at::kLong);
}

}  // namespace

TEST_CASE("Inputs in a file change no bit, at any stage, in any precision, with accumulation and dropout") {
  const std::vector<std::string> precisions = {"", R"(, "bf16": {"enabled": true})",
                                               R"(, "fp16": {"enabled": true, "initial_scale_power": 8})",
                                               R"(, "torch_autocast": {"enabled": true})"};
  constexpr int64_t kHidden = 96;
  for (const auto [stage, precision, accumulates, ranks, plain, drops] : settings(4, 4, 2, 3, 2, 2)) {
    CAPTURE(stage, precision, accumulates, ranks, plain, drops);
    const TemporaryFolder folder;
    // Dropout needs one rank: rank-threads share LibTorch's generator.
    CHECK_NOTHROW(run_ranks(
        drops == 1 ? 1 : 1 + ranks, [&, &precision = precision, &plain = plain, &stage = stage,
                                     &drops = drops, &accumulates = accumulates](auto communicator) {
          const std::string& more = precisions[static_cast<size_t>(precision)];
          const auto train = [&](const std::string& recompute) {
            return train_blocks(block_config(stage, more + recompute, 1 + accumulates), communicator,
                                0.3 * drops, plain, kHidden);
          };
          const BlockRun kept = train(""), run = train(in_file(folder / "new"));
          expect_same_bits(run, kept);
          const int64_t bytes = 2 * 6 * kHidden * (precision == 1 || precision == 2 ? 2 : 4);
          expect(run.in_files == 4 * checkpoint::rounded_up(bytes, checkpoint::kPageBytes),
                 "the file has " + std::to_string(run.in_files) + " bytes");
          expect(run.forwards[0] == 2 * kept.forwards[0], "recomputed");
        }));
  }
}

TEST_CASE("Inputs in a file take no memory but a few buffers, and a budget does not count them") {
  constexpr int64_t kBlocks = 12, kKept = 8 * kInput;
  const TemporaryFolder folder;
  for (const bool has_budget : {false, true}) {
    CAPTURE(has_budget);
    // For two blocks that are kept and one that is recomputed, or for three that are kept at the end.
    const int64_t budget_bytes = 3 * (kInput + kKept);
    const std::string budget = R"("budget": ")" + std::to_string(budget_bytes) + "\"";
    run_ranks(1, [&](auto communicator) {
      BlockModel model(kBlocks, 32);
      Engine engine = make_engine(
          model, kSgd + in_file(folder / "", has_budget ? budget : R"("every": 1)") + "}", communicator);
      const int64_t without_buffers = engine.bytes_by_category().buckets;
      int64_t held = 0;
      for (int step = 0; step < 3; ++step) {
        const AllocatedBytes bytes;
        at::Tensor x = model.embedding(many_tokens(4));
        const int64_t before = bytes.now() - kInput;
        x = model.run_blocks(x);
        held = bytes.now() - before - kInput;  // without the output of the last block
        engine.backward(model.loss_of(x, many_tokens(4)));
        engine.step();
        expect(step > 0 || held < kInput / 4, "held at first " + std::to_string(held));
      }
      const int64_t least = has_budget ? 2 * (kInput + kKept) : 0, most = has_budget ? budget_bytes : 0;
      expect(held > least - kInput / 4 && held < most + kInput / 4, "held " + std::to_string(held));
      const BytesByCategory bytes = engine.bytes_by_category();
      expect(bytes.buckets - without_buffers == 4 * kInput, "buffers");
      expect(bytes.in_files == kBlocks * kInput, "the file");
    });
  }
}

TEST_CASE("Graphs may be differentiated in any order, twice, and not at all") {
  const TemporaryFolder folder;
  run_ranks(2, [&](auto communicator) {
    const auto train = [&](const std::string& recompute) {
      BlockModel model(3, 32);
      Engine engine =
          make_engine(model, kSgd + R"(, "gradient_accumulation_steps": 3)" + recompute + "}", communicator);
      for (uint64_t step = 0; step < 3; ++step) {
        const at::Tensor unused = model.loss(many_tokens(7 * step));
        const at::Tensor one = model.loss(many_tokens(7 * step + 1));
        const at::Tensor other = model.loss(many_tokens(7 * step + 2));
        engine.scale(one).backward();
        engine.step();
        engine.scale(other).backward({}, /*retain_graph=*/true);
        engine.step();
        engine.scale(other).backward();
        engine.step();
      }
      GatheredParameters whole(engine, model.parameters());
      return std::pair(copies_of(model), engine.bytes_by_category().in_files);
    };
    const auto kept = train(""), run = train(in_file(folder / ""));
    expect_same(run.first, kept.first, "parameters");
    // Three graphs at once, and the next three begin while the last ones are still there.
    expect(run.second >= 9 * kInput && run.second <= 18 * kInput, "the file " + std::to_string(run.second));
  });
}

TEST_CASE("A block in a file may have several inputs, masks, and inputs in another order of memory") {
  struct Layers : torch::nn::Module {
    Layers()
        : image(register_module("image", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 5).padding(2)))),
          pair(register_module("pair", torch::nn::Linear(32, 32))),
          weight(register_parameter("weight", at::ones({8, 1, 32, 32}))) {}
    torch::nn::Conv2d image;
    torch::nn::Linear pair;
    at::Tensor weight;
  };
  const TemporaryFolder folder;
  for (const int stage : {0, 3}) {
    run_ranks(2, [&](auto communicator) {
      const auto train = [&](const std::string& recompute) {
        Layers model;
        fill(model, 3);
        Engine engine = make_engine(model, block_config(stage, recompute), communicator);
        const at::Tensor mask = values({8, 32, 32}, 9);
        for (uint64_t step = 0; step < 3; ++step) {
          // One channel: the order of memory of images with channels last, which convolutions look at.
          const at::Tensor image =
              (model.weight * values({8, 1, 32, 32}, step)).as_strided({8, 1, 32, 32}, {1024, 1, 32, 1});
          at::Tensor x = recomputable(*model.image, image).mean(1);
          x = recomputable(
              *model.pair,
              [&](const at::Tensor& rows, const at::Tensor& columns, const at::Tensor& given) {
                return model.pair(rows) * given + columns;
              },
              x, x.transpose(1, 2).exp(), mask);
          engine.backward(x.square().mean());
          engine.step();
        }
        GatheredParameters whole(engine, model.parameters());
        return std::pair(copies_of(model), engine.bytes_by_category().in_files);
      };
      const auto kept = train(""), run = train(in_file(folder / ""));
      expect_same(run.first, kept.first, "parameters");
      expect(run.second == 3 * kInput,
             "the image and two of the three inputs: " + std::to_string(run.second));
    });
  }
}

TEST_CASE("A folder in which no file can be made is an error on all ranks") {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "text";
  run_ranks(2, [&](auto communicator) {
    BlockModel model(2);
    const std::filesystem::path own = communicator->rank() == 1 ? folder / "file" : folder / "folder";
    expect_throws([&] { make_engine(model, kSgd + in_file(own) + "}", communicator); }, folder / "file",
                  "a folder that is a file on rank 1");
  });
}

}  // namespace zerorun::testing
