#include "tests/engine/state_support.h"

#include "engine/model_parameters.h"
#include "engine/setup.h"
#include "tests/engine/net.h"

namespace zerorun::testing {
namespace {

template <typename Optimizer, typename Options>
StateCase client(const std::string& name, const Options& options) {
  return {.name = "client " + name, .client = [options](std::vector<at::Tensor> parameters) {
            return std::make_unique<Optimizer>(std::move(parameters), options);
          }};
}

StateCase by_config(const std::string& type, const std::string& params, const std::string& lr = "0.01") {
  return {.name = type, .optimizer = R"({"type": ")" + type + R"(", "params": {"lr": )" + lr + params + "}}"};
}

}  // namespace

std::vector<StateCase> all_state_cases() {
  using namespace torch::optim;
  return {by_config("AdamW", R"(, "weight_decay": 0.1)"),
          by_config("Adam", R"(, "adam_w_mode": false, "amsgrad": true)"),
          by_config("SGD", R"(, "momentum": 0.9, "dampening": 0.5)"),
          by_config("SGD", ""),
          by_config("Adagrad", R"(, "initial_accumulator_value": 0.5, "lr_decay": 0.1)"),
          by_config("RMSprop", R"(, "momentum": 0.9, "centered": true)"),
          by_config("Lion", ""),
          by_config("Lamb", ""),
          by_config("Muon", ""),
          client<Adam>("Adam", AdamOptions(0.01).amsgrad(true)),
          client<AdamW>("AdamW", AdamWOptions(0.01)),
          client<SGD>("SGD", SGDOptions(0.01).momentum(0.9).dampening(0.5)),
          client<Adagrad>("Adagrad", AdagradOptions(0.01).lr_decay(0.1)),
          client<RMSprop>("RMSprop", RMSpropOptions(0.01).momentum(0.9).centered(true))};
}

StateCase in_files(StateCase how, const std::filesystem::path& folder) {
  how.name += " in files";
  how.zero += R"(, "offload_optimizer": {"device": "nvme", "nvme_path": ")" + folder.string() + "\"}";
  return how;
}

StateCase with_values_in_files(StateCase how, const std::filesystem::path& folder) {
  how.name += " with values in files";
  how.zero +=
      R"(, "offload_param": {"device": "nvme", "max_in_cpu": 0, "nvme_path": ")" + folder.string() + "\"}";
  return how;
}

StateNetImpl::StateNetImpl(double given_dropout, int64_t width) : dropout(given_dropout) {
  first = register_parameter("first", values({width, 67}, 1) * 0.1);
  last = register_parameter("last", values({67, 13}, 2) * 0.1);
  bias = register_parameter("bias", values({13}, 3) * 0.1);
  fixed = register_parameter("fixed", values({13, 13}, 4) * 0.1, /*requires_grad=*/false);
}

at::Tensor StateNetImpl::loss(const at::Tensor& x) {
  at::Tensor hidden = torch::tanh(x.matmul(first));
  if (dropout > 0) hidden = torch::dropout(hidden, dropout, is_training());
  return (hidden.matmul(last) + bias).matmul(fixed).to(at::kFloat).pow(2).mean();
}

StateTraining::StateTraining(const StateCase& how, int stage, const std::string& precision,
                             std::shared_ptr<Communicator> communicator, const std::string& more,
                             double dropout, int64_t bucket_numel)
    : model(dropout, how.width) {
  std::string text = R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.5,
      "zero_optimization": {"stage": )" +
                     std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 20)" + how.zero + "}";
  if (!how.optimizer.empty()) text += R"(, "optimizer": )" + how.optimizer;
  if (precision == "bf16") text += R"(, "bf16": {"enabled": true})";
  if (precision == "bf16 states") {
    text += R"(, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
        "bf16_optimizer_states": true}, "zerorun": {"stochastic_rounding": true})";
  }
  if (precision == "8 bits") text += R"(, "zerorun": {"optimizer_states_in_8_bits": true})";
  if (precision == "fp16") {
    text += R"(, "fp16": {"enabled": true, "initial_scale_power": 4, "loss_scale_window": 3})";
  }
  const Config config = parse_config(text + more + "}", "state", communicator->world_size());
  InitializeOptions options;
  options.communicator = communicator;
  options.bucket_numel = bucket_numel;
  if (how.client) {
    client = how.client({model->first, model->last, model->bias});
    options.optimizer = client.get();
  }
  Mesh mesh = config.mesh ? Mesh(communicator, *config.mesh) : Mesh(communicator);
  make_neighbour_groups(config, mesh);
  state = std::make_shared<EngineState>(model_of(*model), config, mesh,
                                        collect_parameters(model_of(*model), config, options), options);
  engine = std::make_unique<Engine>(state);
}

float StateTraining::step(int number) {
  constexpr int64_t kBatch = 12;  // rows of all ranks together; divisible by 1, 2, 3, 4 and 6 ranks
  const int64_t rows = kBatch / state->mesh.data().world_size();
  const at::Tensor batch = values({kBatch, model->first.size(0)}, static_cast<uint64_t>(100 * number));
  const at::Tensor loss =
      model->loss(batch.narrow(0, rows * state->mesh.data().rank(), rows).to(engine->dtype()));
  engine->backward(loss);
  engine->step();
  return loss.item<float>();
}

}  // namespace zerorun::testing
