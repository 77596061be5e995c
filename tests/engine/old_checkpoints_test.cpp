// Tests that checkpoints which earlier versions of ZeroRun have written are still read: each training here
// continues from one that lies in tests/engine/data/checkpoints_1 (a manifest of version 1) and ends as the
// same training without an interruption. Initial values and samples are formulas, so that nothing depends on
// random generators.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "checkpoint/verification.h"
#include "engine/gathered_parameters.h"
#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = ZERORUN_SOURCE_DIR "/tests/engine/data/checkpoints_1";
constexpr int kSavedAfter = 3;  // micro-steps
constexpr int kMicroSteps = 6;

at::Tensor wave(at::IntArrayRef sizes, double phase) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return (torch::arange(numel, torch::kDouble) * 0.7 + phase).sin().reshape(sizes).to(torch::kFloat);
}

// A tied weight, a frozen parameter and a buffer.
struct OldNetImpl : torch::nn::Module {
  OldNetImpl() {
    first = register_parameter("first", wave({7, 5}, 1));
    bias = register_parameter("bias", wave({5}, 2));
    fixed = register_parameter("fixed", wave({5, 5}, 3), /*requires_grad=*/false);
    tied = register_parameter("tied", first);
    seen = register_buffer("seen", torch::zeros({2}, torch::kLong));
  }
  at::Tensor loss(const at::Tensor& x) {
    const torch::NoGradGuard no_grad;
    seen += 1;
    const torch::AutoGradMode with_grad(true);
    const at::Tensor hidden = torch::tanh(torch::linear(x.matmul(first), fixed, bias));
    return hidden.matmul(tied.t()).to(torch::kFloat).pow(2).mean();
  }
  at::Tensor first, bias, fixed, tied, seen;
};
TORCH_MODULE(OldNet);

struct OldCase {
  std::string name;
  int ranks = 2;
  int stage = 0;
  std::string more = {};  // further keys of the config
  std::string zero = {};  // further keys of "zero_optimization"
  bool exclude_frozen = false;
  int reader_ranks = 2;
  int reader_stage = 0;
};

constexpr const char* kAccumulates = R"(, "gradient_accumulation_steps": 2)";
constexpr const char* kBf16 = R"(, "bf16": {"enabled": true})";
constexpr const char* kFp16 =
    R"(, "fp16": {"enabled": true, "initial_scale_power": 4, "loss_scale_window": 2})";

// A kind of checkpoint each: windows with gradients of each rank and with sums, master weights, a loss scale
// and a schedule, state that the writer kept in files, and one without frozen parameters.
std::vector<OldCase> old_cases() {
  return {
      {.name = "fp32_stage0_window", .stage = 0, .more = kAccumulates, .reader_ranks = 2, .reader_stage = 1},
      {.name = "bf16_stage2_window",
       .stage = 2,
       .more = std::string(kAccumulates) + kBf16,
       .reader_ranks = 2,
       .reader_stage = 3},
      {.name = "fp16_stage3_schedule",
       .stage = 3,
       .more =
           std::string(kFp16) +
           R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 4}})",
       .exclude_frozen = true,
       .reader_ranks = 3,
       .reader_stage = 1},
      {.name = "fp32_stage3_in_files",
       .ranks = 1,
       .stage = 3,
       .zero = R"(, "offload_optimizer": {"device": "nvme", "nvme_path": "NVME"},
                   "offload_param": {"device": "nvme", "max_in_cpu": 0, "nvme_path": "NVME"})",
       .reader_ranks = 2,
       .reader_stage = 2},
  };
}

struct OldTraining {
  OldTraining(const OldCase& how, int stage, const std::string& zero,
              std::shared_ptr<Communicator> communicator)
      : engine(make_engine(
            *model,
            R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": )" +
                std::to_string(stage) + zero +
                R"(}, "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "weight_decay": 0.1}})" +
                how.more + "}",
            std::move(communicator))) {}

  // The whole batch does not depend on the number of ranks.
  void micro_step(int number) {
    constexpr int64_t kBatch = 6;
    const int64_t rows = kBatch / engine.communicator().world_size();
    const at::Tensor batch = wave({kBatch, 7}, 10 + number);
    engine.backward(
        model->loss(batch.narrow(0, rows * engine.communicator().rank(), rows).to(engine.dtype())));
    engine.step();
  }

  OldNet model;
  Engine engine;
};

// The parameters at the end, as fp32.
std::vector<at::Tensor> end_of(OldTraining& training) {
  std::vector<at::Tensor> values;
  GatheredParameters whole(training.engine, training.model->parameters());
  for (const at::Tensor& parameter : training.model->parameters())
    values.push_back(parameter.detach().to(torch::kFloat).clone());
  values.push_back(training.model->seen.to(torch::kFloat).clone());
  return values;
}

}  // namespace

// Wrote the checkpoints in kFolder, at the last commit whose manifests had version 1.
TEST_CASE("Write checkpoints to the folder that ZERORUN_WRITE_CHECKPOINTS names", "[.write]") {
  const char* const given = std::getenv("ZERORUN_WRITE_CHECKPOINTS");
  if (!given) return;
  const fs::path folder = given;
  for (const OldCase& how : old_cases()) {
    const TemporaryFolder nvme;
    std::string zero = how.zero;
    for (size_t at; (at = zero.find("NVME")) != std::string::npos;) zero.replace(at, 4, (nvme / "").string());
    run_ranks(how.ranks, [&](std::shared_ptr<Communicator> communicator) {
      OldTraining training(how, how.stage, zero, communicator);
      for (int number = 0; number < kSavedAfter; ++number) training.micro_step(number);
      training.engine.save_checkpoint(folder, how.name,
                                      {.client_state = R"({"epoch": 3, "note": "x"})",
                                       .save_latest = false,
                                       .exclude_frozen = how.exclude_frozen});
      training.engine.wait_for_checkpoint();
    });
  }
}

TEST_CASE("A training continues from a checkpoint of version 1 as if it had not been interrupted") {
  for (const OldCase& how : old_cases()) {
    CAPTURE(how.name);
    CHECK(verify_checkpoint(local_file_system(), kFolder / how.name).passed());
    std::mutex mutex;
    std::vector<at::Tensor> expected, found;
    std::string client_state;
    run_ranks(how.reader_ranks, [&](std::shared_ptr<Communicator> communicator) {
      OldTraining whole(how, how.reader_stage, "", communicator);
      for (int number = 0; number < kMicroSteps; ++number) whole.micro_step(number);
      OldTraining resumed(how, how.reader_stage, "", communicator);
      const RestoredCheckpoint restored = resumed.engine.load_checkpoint(kFolder, how.name);
      for (int number = kSavedAfter; number < kMicroSteps; ++number) resumed.micro_step(number);
      const auto end = end_of(whole);
      const auto resumed_end = end_of(resumed);
      const std::lock_guard lock(mutex);
      if (communicator->rank() != 0) return;
      expected = end;
      found = resumed_end;
      client_state = restored.client_state;
    });
    CHECK(client_state == R"({"epoch":3,"note":"x"})");
    REQUIRE(found.size() == expected.size());
    for (size_t index = 0; index < found.size(); ++index) {
      CAPTURE(index, found[index], expected[index]);
      CHECK(torch::allclose(found[index], expected[index], 1e-2, 1e-3));
    }
  }
}

}  // namespace zerorun::testing
