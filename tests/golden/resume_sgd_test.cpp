// Tests that training continues from a checkpoint of DeepSpeed with SGD, whose states have no step: with the
// momentum of the checkpoint, and with dampening, which torch leaves out of the first step only. The files
// are made here, and the next steps are those of the formula.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "convert/import_checkpoint.h"
#include "tests/convert/pickle_builder.h"
#include "tests/convert/zip_builder.h"
#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
using namespace convert;
namespace {

namespace pk = pickled;

constexpr double kMomentum = 0.9;
constexpr const char* kRun = "x/global_step7/";

at::Tensor weights() {
  return values({6}, 1);
}
at::Tensor momenta() {
  return values({6}, 2);
}
at::Tensor gradient_of(int step) {
  return values({6}, 10 + static_cast<uint64_t>(step));
}

std::string bytes_of(const at::Tensor& values) {
  return {static_cast<const char*>(values.const_data_ptr()), values.nbytes()};
}

// A checkpoint of two ranks at stage 1 or 3 after 7 steps with a rate of 1. Each rank has three elements.
void write_checkpoint(const TemporaryFolder& folder, int stage) {
  std::filesystem::create_directories(folder / kRun);
  const std::string all = pk::tensor(pk::storage("FloatStorage", "0", 6), 0, {6}, {1});
  const std::string model = torch_archive(
      pk::whole(pk::dict({{"buffer_names", "]"},
                          {"module", stage == 3 ? "}" : pk::dict({{"w", all}})},
                          {"param_shapes", pk::list({pk::dict({{"w", pk::integers({6})}})})},
                          {"global_steps", pk::integer(7)},
                          {"dp_world_size", pk::integer(2)},
                          {"ds_config", pk::dict({{"optimizer", pk::dict({{"type", pk::text("SGD")}})}})}})),
      {{"0", bytes_of(weights())}});
  if (stage != 3) folder.write(std::string(kRun) + "mp_rank_00_model_states.pt", model);
  for (const int rank : {0, 1}) {
    const std::string prefix = kRun + ("zero_pp_rank_" + std::to_string(rank)) + "_mp_rank_00_";
    if (stage == 3) folder.write(prefix + "model_states.pt", model);
    const auto part = [](const std::string& key) {
      return pk::tensor(pk::storage("FloatStorage", key, 3), 0, {3}, {1});
    };
    const std::string base =
        pk::dict({{"param_groups", pk::list({pk::dict({{"lr", pk::integer(1)}})})},
                  {"state", pk::numbered({pk::dict({{"momentum_buffer", part("1")}})})}});
    const std::string state = pk::dict(
        {{"zero_stage", pk::integer(stage)},
         {stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups", pk::list({part("0")})},
         {stage == 3 ? "optimizer_state_dict" : "base_optimizer_state", base}});
    folder.write(prefix + "optim_states.pt",
                 torch_archive(pk::whole(pk::dict({{"optimizer_state_dict", state}})),
                               {{"0", bytes_of(weights().narrow(0, 3 * rank, 3).clone())},
                                {"1", bytes_of(momenta().narrow(0, 3 * rank, 3).clone())}}));
  }
}

std::string config_of(int stage, const std::string& optimizer) {
  return R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, )" + optimizer +
         R"("zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )" +
         std::to_string(stage) + "}}";
}

}  // namespace

TEST_CASE("Training continues from a DeepSpeed checkpoint with SGD, with its momentum and dampening") {
  const int source_stage = GENERATE(1, 3);
  const int stage = GENERATE(0, 1, 3);
  const double dampening = GENERATE(0.0, 0.5);
  const bool by_program = GENERATE(false, true);
  const int ranks = GENERATE(1, 2);
  CAPTURE(source_stage, stage, dampening, by_program, ranks);
  const TemporaryFolder folder;
  write_checkpoint(folder, source_stage);
  import_checkpoint(local_file_system(), read_deepspeed_checkpoint(local_file_system(), folder / kRun),
                    folder / "imported", "");
  at::Tensor expected = weights(), buffer = momenta();
  for (int step = 0; step < 3; ++step) {
    buffer = kMomentum * buffer + (1 - dampening) * gradient_of(step);
    expected = expected - buffer;
  }
  const std::string in_config = R"("optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": )" +
                                std::to_string(kMomentum) + R"(, "dampening": )" + std::to_string(dampening) +
                                "}}, ";
  CHECK_NOTHROW(run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
    torch::nn::Module model;
    const at::Tensor weight = model.register_parameter("w", torch::zeros({6}));
    torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(0.1).momentum(kMomentum).dampening(dampening));
    InitializeOptions options;
    if (by_program) options.optimizer = &sgd;
    Engine engine = make_engine(model, config_of(stage, by_program ? "" : in_config), communicator, options);
    engine.load_checkpoint(folder / "imported");
    for (int step = 0; step < 3; ++step) {
      engine.backward((weight * gradient_of(step)).sum());
      engine.step();
    }
    if (!torch::allclose(weight.detach().clone(), expected, 1e-5, 1e-6))
      throw std::runtime_error("not the weights of the formula");
  }));
}

}  // namespace zerorun::testing
