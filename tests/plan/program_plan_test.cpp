// Compares plans of a program with the program's training: GPT-2, whose forward and backward run on tensors
// without memory, and what LibTorch allocates in a real micro-step.
#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "config/config.h"
#include "plan/rank_plan.h"
#include "samples/gpt2/model.h"
#include "tests/support/allocated_bytes.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"
#include "zero/deferred_init.h"

namespace zerorun::testing {
namespace {

constexpr int64_t kRows = 4, kLength = 64;
const samples::Gpt2Options kGpt2{.layers = 8, .hidden = 64, .heads = 4, .vocab = 96, .positions = kLength};

struct ProgramSetting {
  int stage;
  bool is_bf16, is_masked;
  std::string recompute;  // in zerorun.recompute
  int ranks = 1, accumulation = 1;
  std::string zeropp = {};  // members of zero_optimization
};

std::string program_config(const ProgramSetting& how) {
  return R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": )" +
         std::to_string(how.accumulation) + (how.is_bf16 ? R"(, "bf16": {"enabled": true})" : "") +
         (how.recompute.empty() ? "" : R"(, "zerorun": {"recompute": {)" + how.recompute + "}}") +
         R"(, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": )" +
         std::to_string(how.stage) + R"(, "stage3_param_persistence_threshold": 200)" + how.zeropp + "}}";
}

at::Tensor masked_loss(samples::Gpt2Impl& model, const at::Tensor& tokens, bool is_masked) {
  return model.loss(tokens, is_masked ? at::ones_like(tokens) : at::Tensor());
}

PlanReport plan_of_gpt2(samples::Gpt2Impl& model, const ProgramSetting& how) {
  PlannedTraining training{.model = model_of(model), .forward = [&](Engine&) {
                             return masked_loss(
                                 model, at::empty({kRows, kLength}, at::dtype(at::kLong).device(at::kMeta)),
                                 how.is_masked);
                           }};
  return plan_training(std::move(training), program_config(how), "test",
                       {.world_size = how.ranks, .hosts = how.ranks, .with_others = false});
}

void check_near(const std::string& what, int64_t planned, int64_t measured, double tolerance) {
  const auto difference = static_cast<double>(std::abs(planned - measured));
  expect(difference <= tolerance * static_cast<double>(measured),
         what + ": planned " + std::to_string(planned) + ", measured " + std::to_string(measured));
}

// Trains, and compares with the plan what the engine counts, and the peak of LibTorch's own reports.
void compare_with_training(const ProgramSetting& how) {
  samples::Gpt2 shapes(kGpt2);
  const PlanReport report = plan_of_gpt2(*shapes, how);
  const RankPlan& plan = report.plan;
  expect(plan.activations.has_value(), "not known: " + report.unknown_activations);
  run_ranks(
      how.ranks,
      [&](std::shared_ptr<Communicator> communicator) {
        samples::Gpt2 model(kGpt2);
        InitializeOptions options;
        options.communicator = communicator;
        Engine engine =
            initialize(*model, parse_config(program_config(how), "test", how.ranks), std::move(options));
        const at::Tensor tokens = at::arange(kRows * kLength).remainder(kGpt2.vocab).view({kRows, kLength});
        BytesByCategory peak;
        note_peak(peak, engine);
        int64_t activations = 0;
        for (int step = 0; step < 3 * how.accumulation; ++step) {
          const AllocatedBytes allocated;
          engine.backward(masked_loss(*model, tokens, how.is_masked));
          // Gathers of the first window are reported too.
          if (step >= 2 * how.accumulation) activations = std::max(activations, allocated.peak());
          note_peak(peak, engine);
          engine.step();
          note_peak(peak, engine);
        }
        check_near("activations", *plan.activations, activations, 0.05);
        check_near("states", plan.peak.model_states(), peak.model_states(), 0.01);
        check_near("buckets", plan.peak.buckets, peak.buckets, 0.01);
        check_near("gathered", plan.peak.gathered, peak.gathered, 0.01);
        expect(plan.peak.in_files == peak.in_files, "files of " + std::to_string(peak.in_files) + " bytes");
        const bool is_in_file = how.recompute.find("nvme_path") != std::string::npos;
        expect(plan.file_bytes_per_step == (is_in_file ? how.accumulation * peak.in_files : 0),
               "bytes written");
      },
      std::chrono::seconds(60), false);
}

constexpr int kStages = 2;

// GPT-2 among two stages of two data ranks each, `accumulation` micro-batches a step.
InitializeOptions staged(samples::Gpt2Impl& model) {
  InitializeOptions options;
  options.mesh = MeshSizes{.pipeline = kStages};
  options.pipeline = model.pipeline();
  return options;
}

// Trains, and compares what each stage takes, and what the first one sends to the other.
void compare_stages(const ProgramSetting& how) {
  samples::Gpt2 shapes(kGpt2);
  InitializeOptions options = staged(*shapes);
  options.pipeline->example =
      samples::Gpt2Impl::micro_batch(at::empty({kRows, kLength}, at::dtype(at::kLong).device(at::kMeta)));
  const PlanReport report =
      plan_training({.model = model_of(*shapes), .options = std::move(options)}, program_config(how), "test",
                    {.world_size = how.ranks, .hosts = how.ranks, .with_others = false});
  expect(report.plan.stages.size() == kStages, "a plan of each stage");
  run_ranks(
      how.ranks,
      [&](std::shared_ptr<Communicator> communicator) {
        samples::Gpt2 model(kGpt2);
        InitializeOptions given = staged(*model);
        given.communicator = communicator;
        Engine engine = initialize(
            *model, parse_config(program_config(how), "test", {.world_size = how.ranks, .mesh = given.mesh}),
            std::move(given));
        const at::Tensor tokens = at::arange(kRows * kLength).remainder(kGpt2.vocab).view({kRows, kLength});
        const std::vector<MicroBatch> window(static_cast<size_t>(how.accumulation),
                                             samples::Gpt2Impl::micro_batch(tokens));
        Communicator& stages = engine.mesh().along(MeshAxis::pipeline);
        BytesByCategory peak;
        note_peak(peak, engine);
        int64_t activations = 0;
        for (int step = 0; step < 3; ++step) {
          stages.volume().reset();
          const AllocatedBytes allocated;
          engine.train_batch(window);
          // Gathers of the first window, and what it sends of shapes, come once.
          if (step > 0) activations = std::max(activations, allocated.peak());
          note_peak(peak, engine);
        }
        const int own = engine.mesh().coordinates().pipeline;
        const int64_t memory =
            peak.model_states() + peak.buckets + peak.buffers + peak.gathered + activations;
        check_near("stage " + std::to_string(own), report.plan.stages[static_cast<size_t>(own)], memory,
                   0.05);
        // Activations of 32 bits go one way and their gradients the other; each list is announced by a
        // number.
        const double elements = how.accumulation * static_cast<double>(kRows * kLength * kGpt2.hidden);
        const double sent = stages.volume().elements_of_messages();
        expect(sent - elements >= 0 && sent - elements <= how.accumulation, "elements that are sent");
        const double planned = report.plan.sent.passed_bytes / (how.is_bf16 ? 2 : 4);
        expect(planned == elements, "planned " + std::to_string(planned) + ", sent " + std::to_string(sent));
      },
      std::chrono::seconds(60), false);
}

struct ReadsValue : torch::nn::Module {
  ReadsValue() : weight(register_parameter("weight", at::ones({8}))) {}
  at::Tensor loss(const at::Tensor& x) { return (weight * x).sum() * (x.sum().item<double>() > 0 ? 1 : 2); }
  at::Tensor weight;
};

constexpr char kSgdConfig[] = R"({"train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}}})";

}  // namespace

TEST_CASE("A plan of a program has the activations of its training") {
  // oneDNN's kernels copy operands of 16 bits into workspaces, on some processors only.
  const bool with_onednn = at::globalContext().userEnabledMkldnn();
  at::globalContext().setUserEnabledMkldnn(false);
  const TemporaryFolder folder;
  const std::string recomputes[] = {"", R"("every": 1)", R"("every": 2)", R"("budget": "1M")",
                                    R"("every": 1, "nvme_path": ")" + std::string(folder / "") + "\""};
  for (const auto& [stage, precision, recompute] : settings(4, 2, 5)) {
    const ProgramSetting how{.stage = stage,
                             .is_bf16 = precision == 1,
                             .is_masked = (stage + recompute) % 2 == 1,
                             .recompute = recomputes[recompute],
                             .ranks = 1 + (stage + precision) % 2,
                             .accumulation = 1 + recompute % 2};
    CAPTURE(how.stage, how.is_bf16, how.is_masked, how.recompute, how.ranks, how.accumulation);
    CHECK_NOTHROW(compare_with_training(how));
  }
  at::globalContext().setUserEnabledMkldnn(with_onednn);
}

TEST_CASE("A plan of a program has what gathers and reductions in 8 bits need for a moment") {
  const bool with_onednn = at::globalContext().userEnabledMkldnn();
  at::globalContext().setUserEnabledMkldnn(false);
  const std::string zeropp[] = {R"(, "zero_quantized_weights": true)",
                                R"(, "zero_quantized_gradients": true)",
                                R"(, "zero_quantized_gradients": true, "zero_quantized_weights": true)"};
  for (const auto& [precision, keys, accumulation] : settings(2, 3, 2)) {
    ProgramSetting how{.stage = 3,
                       .is_bf16 = precision == 1,
                       .is_masked = false,
                       .recompute = R"("every": 1)",
                       .ranks = 3,
                       .accumulation = 1 + accumulation,
                       .zeropp = zeropp[keys] + R"(, "stage3_max_reuse_distance": 0)"};
    CAPTURE(how.is_bf16, how.zeropp, how.accumulation);
    CHECK_NOTHROW(compare_with_training(how));
    samples::Gpt2 model(kGpt2);
    const auto of_states = [&] {
      return plan_training({.model = model_of(*model)}, program_config(how), "test",
                           {.world_size = how.ranks, .hosts = how.ranks, .with_others = false})
          .plan;
    };
    const RankPlan narrow = of_states();
    how.zeropp.clear();
    const RankPlan exact = of_states();
    CHECK(exact.transfers == 0);
    // A slice of the largest parameter in float32, and what is computed of it.
    CHECK(narrow.transfers >= 2 * 4 * 4 * kGpt2.hidden * kGpt2.hidden / how.ranks);
    CHECK(narrow.memory() - narrow.transfers == exact.memory());
  }
  at::globalContext().setUserEnabledMkldnn(with_onednn);
}

TEST_CASE("A plan of ranks that share memory has their parameters in files") {
  samples::Gpt2 model(kGpt2);
  const TemporaryFolder folder;
  const std::string nvme = R"({"device": "nvme", "nvme_path": ")" + std::string(folder / "") + "\"";
  const std::string config = R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 3,
      "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 50000, "offload_param": )" +
                             nvme + R"(, "max_in_cpu": 0}, "offload_optimizer": )" + nvme + "}}}";
  std::vector<int64_t> bytes;
  for (const int hosts : {1, 2}) {
    CAPTURE(hosts);
    PlannedTraining training{
        .model = model_of(*model), .forward = [&](Engine&) {
          return model->loss(at::empty({kRows, kLength}, at::dtype(at::kLong).device(at::kMeta)));
        }};
    const PlanReport report = plan_training(std::move(training), config, "test",
                                            {.world_size = 2, .hosts = hosts, .with_others = false});
    CHECK(report.plan.activations);
    bytes.push_back(report.plan.peak.in_files);
  }
  CHECK(bytes[0] > 0);
  CHECK(bytes[0] == bytes[1]);
}

TEST_CASE("A plan of pipeline stages has what each of them takes and sends") {
  const bool with_onednn = at::globalContext().userEnabledMkldnn();
  at::globalContext().setUserEnabledMkldnn(false);
  for (const auto& [stage, precision, accumulation] : settings(3, 2, 2)) {
    const ProgramSetting how{.stage = stage,
                             .is_bf16 = precision == 1,
                             .is_masked = false,
                             .recompute = stage == 1 ? R"("every": 1)" : "",
                             .ranks = 2 * kStages,
                             .accumulation = accumulation == 0 ? 3 : 9};
    CAPTURE(how.stage, how.is_bf16, how.recompute, how.accumulation);
    CHECK_NOTHROW(compare_stages(how));
  }
  at::globalContext().setUserEnabledMkldnn(with_onednn);
}

TEST_CASE("A plan leaves a model as it was: with values, deferred, with gradients, and in another dtype") {
  samples::Gpt2 model(kGpt2), same(kGpt2);
  model->loss(at::zeros({1, kLength}, at::kLong)).backward();
  const at::Tensor gradient = model->parameters().front().grad().clone();
  const void* address = model->parameters().front().data_ptr();
  plan_of_gpt2(*model, {.stage = 3, .is_bf16 = true, .is_masked = false, .recompute = "", .ranks = 2});
  CHECK(model->parameters().front().data_ptr() == address);
  CHECK(at::equal(model->parameters().front().grad(), gradient));
  for (size_t index = 0; index < same->parameters().size(); ++index)
    CHECK(at::equal(model->parameters()[index], same->parameters()[index]));
  model->zero_grad();
  model->loss(at::zeros({1, kLength}, at::kLong)).backward();  // its graph is one of tensors with memory
  CHECK(at::equal(model->parameters().front().grad(), gradient));

  samples::Gpt2 deferred = [] {
    const DeferredInit scope;
    return samples::Gpt2(kGpt2);
  }();
  CHECK(plan_of_gpt2(*deferred, {.stage = 2, .is_bf16 = false, .is_masked = false, .recompute = ""})
            .plan.activations);
  for (size_t index = 0; index < same->parameters().size(); ++index)
    CHECK(at::equal(make_tensor(deferred->parameters()[index]), same->parameters()[index]));
}

TEST_CASE("A plan says why activations are not known, and has everything else") {
  ReadsValue model;
  const PlannedForward forward = [&](Engine&) {
    return model.loss(at::empty({8}, at::dtype(at::kFloat).device(at::kMeta)));
  };
  const TemporaryFolder folder;
  const auto config = folder / "ds_config.json";
  std::ofstream(config) << kSgdConfig;
  const PlanReport report = plan_training(model, config, {.memory = 1 << 20}, forward);
  CHECK(!report.plan.activations);
  CHECK(report.plan.peak.parameters == 64);  // 8 elements, padded to 64 bytes
  CHECK_THAT(report.unknown_activations,
             Catch::Contains("cannot run without values") && Catch::Contains("_local_scalar_dense"));
  CHECK_THAT(to_text(report), Catch::Contains(report.unknown_activations) &&
                                  Catch::Contains("left for activations and everything else"));
  CHECK_THAT(to_json_text(report), Catch::Contains("\"unknown_activations\": \"the forward"));

  std::ofstream(config) << R"({"train_micro_batch_size_per_gpu": 1, "torch_autocast": {"enabled": true},
      "optimizer": {"type": "SGD", "params": {"lr": 0.1}}})";
  CHECK_THAT(plan_training(model, config, {}, forward).unknown_activations,
             Catch::Contains("torch_autocast"));
}

TEST_CASE("A plan's activations count when the memory of a rank is given") {
  samples::Gpt2 model(kGpt2);
  const ProgramSetting how{.stage = 1, .is_bf16 = false, .is_masked = false, .recompute = ""};
  const RankPlan plan = plan_of_gpt2(*model, how).plan;
  const int64_t states = plan.memory() - plan.activations.value_or(0);
  PlannedTraining training{.model = model_of(*model), .forward = [&](Engine&) {
                             return masked_loss(
                                 *model, at::empty({kRows, kLength}, at::dtype(at::kLong).device(at::kMeta)),
                                 false);
                           }};
  const PlanReport report = plan_training(training, program_config(how), "test", {.memory = states});
  CHECK(!report.fits());
  CHECK(report.plan.memory() > states);
  for (const PlanOfWorld& other : report.others) CHECK(other.plan->activations == plan.activations);
}

TEST_CASE("A model that an engine has is refused") {
  ReadsValue model;
  InitializeOptions options;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    options.communicator = communicator;
    const Engine engine = initialize(model, parse_config(kSgdConfig, "test", 1), options);
    expect_throws([&] { plan_training({.model = model_of(model)}, kSgdConfig, "test", {}); },
                  "weight belongs to an engine", "a plan of an engine's model");
  });
}

}  // namespace zerorun::testing
