// guide: the programs of docs/guide.md, which quotes parts of them word for word. The argument selects a
// section:
//
//   zerorun --num_gpus 2 guide stage3
#include <torch/torch.h>
#include <zerorun/zerorun.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace {

using zerorun::Engine;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width) : hidden(64, width), head(width, 10) {
    register_module("hidden", hidden);
    register_module("head", head);
  }
  at::Tensor loss(const at::Tensor& x) {
    const at::Tensor scores = head(torch::relu(hidden(x))).to(torch::kFloat);
    return torch::nn::functional::cross_entropy(scores, x.slice(1, 0, 10).argmax(1));
  }
  torch::nn::Linear hidden, head;
};
TORCH_MODULE(Net);

at::Tensor inputs(const Engine& engine) {
  return torch::randn({8, 64}, torch::TensorOptions(engine.device()).dtype(engine.dtype()));
}

void train(Engine& engine, Net& model, int steps) {
  for (int step = 0; step < steps; ++step) {
    engine.backward(model->loss(inputs(engine)));
    engine.step();
  }
}

void plain_backward() {
  Net model(256);
  Engine engine = zerorun::initialize(*model, "stage3.json");
  model->loss(inputs(engine)).backward();  // does the same as engine.backward(loss)
  engine.step();

  model->loss(inputs(engine)).backward();
  engine.zero_grad();  // drops this batch
}

void wrapped_optimizer() {
  Net model(256);
  zerorun::ZeroRedundancyOptimizer optimizer(torch::optim::Adam(model->parameters(), 1e-3),
                                             {.partition_grad = true});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    model->loss(inputs(optimizer.engine())).backward();
    optimizer.step();
  }

  Net other(256);
  torch::optim::SGD sgd(other->parameters(), 0.1);
  const auto zero = zerorun::enable_zero(*other, sgd, /*stage=*/2);
  other->loss(inputs(zero->engine())).backward();
  zero->step();
}

void stage3() {
  std::optional<zerorun::DeferredInit> deferred(std::in_place);
  Net model(4096);   // built as usual, but allocates no memory
  deferred.reset();  // initialize() makes the values, bucket by bucket
  Engine engine = zerorun::initialize(*model, "stage3.json");
  train(engine, model, 3);

  {
    zerorun::GatheredParameters scope(engine, {model->head->bias}, /*modifier_rank=*/0);
    if (engine.communicator().rank() == 0) {
      float* bias = model->head->bias.data_ptr<float>();
      std::fill(bias, bias + 10, 0.1f);
    }
  }  // every rank's slice now has what rank 0 wrote

  engine.eval();
  torch::NoGradGuard no_grad;
  const double loss = model->loss(inputs(engine)).item<double>();  // no rank has a full copy
  engine.train();
  if (engine.communicator().rank() == 0) std::printf("stage 3: loss %.3f\n", loss);
}

void mixed_precision() {
  Net model(256);
  Engine engine = zerorun::initialize(*model, "fp16.json");
  for (int step = 0; step < 3; ++step) {
    engine.backward(model->loss(inputs(engine)));  // inputs in engine.dtype()
    engine.step();
    if (!engine.was_step_applied()) std::puts("skipped: a gradient was not finite");
  }
  if (engine.communicator().rank() == 0) std::printf("fp16: loss scale %.0f\n", engine.loss_scale());
}

void accumulation() {
  Net model(256);
  Engine engine = zerorun::initialize(*model, "accumulation.json");
  for (int micro_step = 0; micro_step < 8; ++micro_step) {
    engine.backward(model->loss(inputs(engine)));
    engine.step();  // every fourth step() updates
  }
  {
    auto scope = engine.no_sync();  // several backwards before one step()
    engine.backward(model->loss(inputs(engine)));
  }
  engine.backward(model->loss(inputs(engine)));
  engine.step();
  if (engine.communicator().rank() == 0)
    std::printf("accumulation: %lld steps\n", static_cast<long long>(engine.global_steps()));
}

void checkpoints() {
  Net model(256);
  Engine engine = zerorun::initialize(*model, "stage2.json");
  train(engine, model, 5);
  engine.save_checkpoint("runs/1", "", {.client_state = R"({"epoch": 3})"});  // returns while it is written
  train(engine, model, 5);
  engine.wait_for_checkpoint();  // from here on no crash can lose it

  Net other(256);
  Engine resumed = zerorun::initialize(*other, "stage3.json");  // another stage; other world sizes work too
  auto restored = resumed.load_checkpoint("runs/1");
  if (engine.communicator().rank() == 0)
    std::printf("checkpoints: resumed at step %lld, %s\n", static_cast<long long>(resumed.global_steps()),
                restored.client_state.c_str());
}

void termination() {
  zerorun::survive_termination();  // SIGTERM ends training after a step, on all ranks
  Net model(256);
  Engine engine = zerorun::initialize(*model, "stage2.json");
  for (int step = 0; step < 3 && !engine.should_stop(); ++step) train(engine, model, 1);
  engine.save_checkpoint("runs/2");
}

void automatic_values() {
  Net model(256);
  zerorun::InitializeOptions options;
  options.arguments = {{"train_micro_batch_size_per_gpu", int64_t{8}}, {"optimizer.params.lr", 1e-4}};
  options.output_folder = "runs/3";  // gets ds_config.resolved.json: every value, and where it comes from
  Engine engine = zerorun::initialize(*model, "auto.json", options);
  train(engine, model, 1);
}

void own_optimizer() {
  Net model(256);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  zerorun::InitializeOptions options;
  options.optimizer = &optimizer;
  options.schedule = [](int64_t step, int) { return 1e-3 / static_cast<double>(1 + step); };
  Engine engine = zerorun::initialize(*model, "no_optimizer.json", options);
  train(engine, model, 3);
  if (engine.communicator().rank() == 0) std::printf("learning rate %.6f\n", engine.get_lr().front());
}

void freeing_memory() {
  Net model(256);
  Engine engine = zerorun::initialize(*model, "stage2.json");
  train(engine, model, 1);
  engine.offload_states();  // moments, master weights and gradients leave the GPU
  {
    torch::NoGradGuard no_grad;
    model->loss(inputs(engine));  // parameters are still there
  }
  engine.reload_states();  // before the next backward(), step() or checkpoint
  train(engine, model, 1);
}

}  // namespace

int main(int argc, char** argv) {
  return zerorun::run_program([&] {
    const std::map<std::string, std::function<void()>> sections = {{"stage3", stage3},
                                                                   {"mixed_precision", mixed_precision},
                                                                   {"accumulation", accumulation},
                                                                   {"plain_backward", plain_backward},
                                                                   {"wrapped_optimizer", wrapped_optimizer},
                                                                   {"checkpoints", checkpoints},
                                                                   {"termination", termination},
                                                                   {"automatic_values", automatic_values},
                                                                   {"own_optimizer", own_optimizer},
                                                                   {"freeing_memory", freeing_memory}};
    const std::string name = argc > 1 ? argv[1] : "";
    const auto section = sections.find(name);
    if (section == sections.end()) {
      std::string names;
      for (const auto& [known, run] : sections) names += " " + known;
      throw zerorun::UserError("no section \"" + name + "\" in the guide, expected one of:" + names);
    }
    section->second();
    return 0;
  });
}
