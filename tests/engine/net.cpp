#include "tests/engine/net.h"

#include <stdexcept>

namespace zerorun::testing {

using torch::nn::Linear;

std::string sgd_config(int stage, int accumulation, double clipping) {
  return R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )" +
         std::to_string(accumulation) +
         R"(, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "gradient_clipping": )" +
         std::to_string(clipping) + R"(, "zero_optimization": {"overlap_comm": true, "stage": )" +
         std::to_string(stage) + "}}";
}

std::string no_optimizer_config(int stage) {
  return R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "zero_optimization": {"stage": )" +
         std::to_string(stage) + "}}";
}

Engine make_engine(torch::nn::Module& model, const std::string& config,
                   std::shared_ptr<Communicator> communicator, InitializeOptions options) {
  options.communicator = std::move(communicator);
  return initialize(model, parse_config(config, "test config", options.communicator->world_size()), options);
}

at::Tensor values(at::IntArrayRef sizes, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(sizes, generator);
}

void fill(torch::nn::Module& model, uint64_t seed) {
  torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : model.parameters()) parameter.copy_(values(parameter.sizes(), seed++) * 0.3);
}

std::vector<at::Tensor> copies_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& parameter : model.parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

NetImpl::NetImpl() {
  first = register_module("first", Linear(5, 7));
  branch = register_module("branch", Linear(7, 7));
  last = register_module("last", Linear(7, 3));
  scale = register_parameter("scale", torch::full({1}, 2.0), /*requires_grad=*/false);
  counter = register_buffer("counter", torch::zeros({2}));
  fill(*this, 100);
}

at::Tensor NetImpl::forward(const at::Tensor& x, bool with_branch) {
  at::Tensor hidden = torch::tanh(first(x));
  if (with_branch) hidden = torch::tanh(branch(hidden));
  return last(hidden) * scale;
}

at::Tensor sample(int step, int micro, int rank) {
  return values({2, 5}, 1000 + step * 100 + micro * 10 + rank);
}

std::vector<at::Tensor> plain_sgd(int world, int accumulation, int steps, const LossOf& loss_of) {
  Net model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (int micro = 0; micro < accumulation; ++micro) {
      for (int rank = 0; rank < world; ++rank)
        (loss_of(model, step, micro, rank) / (world * accumulation)).backward();
    }
    optimizer.step();
  }
  return copies_of(*model);
}

void check_close(const torch::nn::Module& model, const std::vector<at::Tensor>& expected) {
  const auto parameters = model.parameters();
  if (parameters.size() != expected.size()) throw std::runtime_error("another number of parameters");
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!torch::allclose(parameters[i], expected[i], 1e-5, 1e-7)) {
      throw std::runtime_error("parameter " + std::to_string(i) + " differs from the plain run");
    }
  }
}

}  // namespace zerorun::testing
