// Compares plans with engines that train: the peak of each category of memory, and what ranks send.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "config/config.h"
#include "plan/rank_plan.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

constexpr int64_t kWidth = 96;
constexpr int kLayers = 7;

struct MeasuredNetImpl : torch::nn::Module {
  MeasuredNetImpl() {
    register_module("wide", wide);
    for (int layer = 0; layer < kLayers; ++layer) {
      layers.push_back(torch::nn::Linear(kWidth, kWidth));
      register_module("layer" + std::to_string(layer), layers.back());
    }
  }
  at::Tensor loss(const at::Tensor& x) {
    at::Tensor y = torch::relu(wide(x));
    for (torch::nn::Linear& layer : layers) y = torch::relu(layer(y));
    return y.to(at::kFloat).square().mean();
  }

  torch::nn::Linear wide{4 * kWidth, kWidth};
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(MeasuredNet);

struct Setting {
  int stage, accumulation, ranks;
  bool is_bf16, shares_memory;
  std::string offload = {};
  std::string zeropp = {};  // members of zero_optimization
  int sum_group = 0;
};

std::string config_text(const Setting& how, const std::filesystem::path& folder) {
  std::string zero = R"("stage": )" + std::to_string(how.stage) +
                     R"(, "stage3_param_persistence_threshold": 200, "stage3_max_live_parameters": 30000,
                        "stage3_prefetch_bucket_size": 10000)" +
                     how.zeropp;
  const std::string device =
      R"({"device": ")" + how.offload + R"(", "nvme_path": ")" + folder.string() + R"("})";
  if (!how.offload.empty()) zero += R"(, "offload_optimizer": )" + device + R"(, "offload_param": )" + device;
  const std::string sums =
      how.sum_group > 0 ? R"("zerorun": {"sum_group": )" + std::to_string(how.sum_group) + "}, " : "";
  return "{" + sums + R"("train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )" +
         std::to_string(how.accumulation) + (how.is_bf16 ? R"(, "bf16": {"enabled": true})" : "") +
         R"(, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "zero_optimization": {)" + zero + "}}";
}

void check_same(const std::string& what, double planned, double measured) {
  expect(std::abs(planned - measured) <= 0.01 * measured,
         what + ": planned " + std::to_string(planned) + ", measured " + std::to_string(measured));
}

void check_peaks(const BytesByCategory& planned, const BytesByCategory& measured) {
  const auto check = [&](const std::string& what, int64_t BytesByCategory::*category) {
    check_same(what, static_cast<double>(planned.*category), static_cast<double>(measured.*category));
  };
  check("parameters", &BytesByCategory::parameters);
  check("gradients", &BytesByCategory::gradients);
  check("master", &BytesByCategory::master);
  check("moments", &BytesByCategory::moments);
  check("buckets", &BytesByCategory::buckets);
  check("buffers", &BytesByCategory::buffers);
  check("gathered", &BytesByCategory::gathered);
  check("on host", &BytesByCategory::on_host);
  check("in files", &BytesByCategory::in_files);
}

void compare(const Setting& how, const std::filesystem::path& folder) {
  const Config config = parse_config(config_text(how, folder), "test", how.ranks);
  MeasuredNet shapes;
  const RankPlan plan =
      plan_rank({.model = model_of(*shapes)}, config,
                {.world_size = how.ranks, .on_gpu = false, .shares_memory = how.shares_memory});
  run_ranks(
      how.ranks,
      [&](std::shared_ptr<Communicator> communicator) {
        MeasuredNet model;
        InitializeOptions options;
        options.communicator = communicator;
        Engine engine = initialize(*model, config, std::move(options));
        BytesByCategory peak;
        note_peak(peak, engine);
        const int windows = 3;
        for (int step = 0; step < windows * how.accumulation; ++step) {
          if (step == (windows - 1) * how.accumulation) {
            for (Communicator* each : engine.mesh().communicators()) each->volume().reset();
          }
          const at::Tensor x = torch::ones({2, 4 * kWidth}).to(how.is_bf16 ? at::kBFloat16 : at::kFloat);
          engine.backward(model->loss(x));
          note_peak(peak, engine);
          engine.step();
          note_peak(peak, engine);
        }
        check_peaks(plan.peak, peak);
        const Volume& sent = communicator->volume();
        check_same("gathered elements", plan.sent.gathered_elements, sent.elements(Collective::all_gather));
        // A group of ranks sums gradients by a communicator of its own before they are sent.
        double reduced = sent.elements_of_messages();
        for (Communicator* each : engine.mesh().communicators())
          reduced += each->volume().elements(Collective::reduce_scatter);
        check_same("reduced elements", plan.sent.reduced_elements, reduced);
      },
      std::chrono::seconds(60), how.shares_memory);
}

}  // namespace

TEST_CASE("A plan has the peak of each category of memory, and what ranks send") {
  const TemporaryFolder folder;
  const std::string offloads[] = {"", "cpu", "nvme"};
  for (const auto& [stage, accumulation, ranks, precision, shared, offload] : settings(4, 2, 3, 2, 2, 3)) {
    const Setting how{.stage = stage,
                      .accumulation = accumulation == 0 ? 1 : 4,
                      .ranks = ranks + 1,
                      .is_bf16 = precision == 1,
                      .shares_memory = shared == 1,
                      .offload = offloads[offload]};
    CAPTURE(how.stage, how.accumulation, how.ranks, how.is_bf16, how.shares_memory, how.offload);
    CHECK_NOTHROW(compare(how, folder / "states"));
  }
}

TEST_CASE("A plan knows what ranks send in 8 bits") {
  const TemporaryFolder folder;
  const std::string zeropp[] = {R"(, "zero_quantized_weights": true)",
                                R"(, "zero_quantized_gradients": true)",
                                R"(, "zero_quantized_gradients": true, "zero_quantized_weights": true)"};
  for (const auto& [accumulation, grouped, precision, keys] : settings(2, 2, 2, 3)) {
    const Setting how{.stage = 3,
                      .accumulation = accumulation == 0 ? 1 : 4,
                      .ranks = 4,
                      .is_bf16 = precision == 1,
                      .shares_memory = false,
                      .zeropp = zeropp[keys],
                      .sum_group = grouped == 1 ? 2 : 0};
    CAPTURE(how.accumulation, how.is_bf16, how.zeropp, how.sum_group);
    CHECK_NOTHROW(compare(how, folder / "states"));
  }
}

TEST_CASE("A plan knows what a host sends to others") {
  // All ranks reduce and gather all elements once: of n bytes a rank sends n / ranks to each other rank.
  const std::string model = R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2)";
  torch::nn::Linear shapes(torch::nn::LinearOptions(256, 256).bias(false));
  const double bytes = 2.0 * 256 * 256 * 4;
  const auto sent = [&](int ranks, int hosts, const std::string& more) {
    return plan_training({.model = model_of(*shapes)}, model + more, "test",
                         {.world_size = ranks, .hosts = hosts, .with_others = false})
        .plan.sent;
  };
  for (const int on_host : {1, 2, 4}) {
    const int ranks = 8, others = ranks - on_host;
    CAPTURE(on_host);
    const SentPerStep flat = sent(ranks, ranks / on_host, "}}");
    CHECK(flat.between_hosts == Approx(bytes * others / ranks));
    CHECK(flat.between_hosts_on_levels == Approx(bytes * others / ranks / on_host));
  }
  CHECK(sent(8, 1, "}}").between_hosts == 0);
  // Gradients in 8 bits: on two levels a rank sends its host's sum of a slice to each other host, 260 bytes
  // for 256 values.
  const SentPerStep exact = sent(8, 2, R"(}, "zerorun": {"sum_group": 4}})");
  const std::string stage3 =
      R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0,
      "zero_quantized_gradients": )";
  const auto levels = [&](const std::string& more) {
    return plan_training({.model = model_of(*shapes)}, stage3 + more, "test",
                         {.world_size = 8, .hosts = 2, .with_others = false})
        .plan.sent.between_hosts_on_levels;
  };
  CHECK(exact.between_hosts == Approx(bytes / 2));
  CHECK(levels("false}}") - levels("true}}") == Approx(256 * 256 / 8 * (4 - 260.0 / 256)));
  // Replicas on each host: only sums of gradients cross, of a slice for each rank.
  const SentPerStep replicas = sent(8, 2, R"(}, "zerorun": {"mesh": {"replicate": 2}}})");
  CHECK(replicas.between_hosts == Approx(256 * 256 * 4 / 4.0));
}

}  // namespace zerorun::testing
