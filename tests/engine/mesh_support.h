// Shared by the tests of meshes: configs, engines of data groups, and losses of Net.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "comm/mesh.h"
#include "tests/engine/net.h"

namespace zerorun::testing {

inline int ranks_of(const MeshSizes& mesh) {
  return mesh.data * mesh.tensor * mesh.pipeline;
}

// The data group of a rank, by number: 0 is the one that counts the parameters.
inline int group_of(const Mesh& mesh) {
  return mesh.coordinates().tensor + mesh.coordinates().pipeline * mesh.sizes().tensor;
}

inline constexpr const char* kPrecisions[] = {
    "", R"("bf16": {"enabled": true},)",
    // Overflows at first; the scale doubles after two steps.
    R"("fp16": {"enabled": true, "initial_scale_power": 15, "loss_scale_window": 2, "hysteresis": 1},)"};
inline constexpr const char* kOptimizers[] = {
    R"("AdamW", "params": {"lr": 0.01})", R"("SGD", "params": {"lr": 0.1})",
    R"("Lamb", "params": {"lr": 0.01})", R"("Muon", "params": {"lr": 0.01})"};

inline std::string mesh_config(int stage, const char* precision = "", int accumulation = 1,
                               double clipping = 0, const char* optimizer = kOptimizers[0],
                               const std::string& zero = "") {
  return R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )" +
         std::to_string(accumulation) + R"(, "optimizer": {"type": )" + optimizer +
         R"(}, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_type": "linear"}},)" +
         precision + R"("gradient_clipping": )" + std::to_string(clipping) +
         R"(, "zero_optimization": {"stage3_param_persistence_threshold": 8, "stage": )" +
         std::to_string(stage) + zero + "}}";
}

inline Engine make_engine_in(torch::nn::Module& model, const std::string& config,
                             std::shared_ptr<Communicator> communicator, const MeshSizes& mesh) {
  const int ranks = communicator->world_size();
  InitializeOptions options;
  options.communicator = std::move(communicator);
  options.mesh = mesh;
  options.tensor_plan = TensorPlan();
  options.pipeline = Pipeline();
  options.bucket_numel = 40;
  return initialize(model, parse_config(config, "test config", {.world_size = ranks, .mesh = mesh}), options);
}

// A loss in which `bias_factor` is added to the gradient of branch.bias.
inline at::Tensor loss_of_net(Net& model, int step, int micro, int rank, double bias_factor = 0) {
  const at::Tensor x = sample(step, micro, rank).to(model->first->weight.scalar_type());
  return model->forward(x, true).to(at::kFloat).square().sum() +
         (model->branch->bias.to(at::kFloat) * bias_factor).sum();
}

}  // namespace zerorun::testing
