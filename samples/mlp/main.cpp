// mlp: a minimal program to copy. It trains a classifier under ZeRO, with 256 inputs, 128 hidden units and 10
// classes. The data are random points, labelled by a fixed random linear map (the teacher).
//
//   zerorun --num_gpus 2 mlp --deepspeed ds_config.json
#include <torch/torch.h>
#include <zerorun/zerorun.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>

#include "samples/common/arguments.h"
#include "samples/common/csv_log.h"
#include "samples/common/hyperparameters.h"

namespace {

constexpr int64_t kInputs = 256, kHidden = 128, kClasses = 10;

at::Tensor random_normal(at::IntArrayRef shape, uint64_t seed) {
  return at::normal(0.0, 1.0, shape, at::make_generator<at::CPUGeneratorImpl>(seed));
}

int run(int argc, char** argv) {
  samples::DeepspeedFlags deepspeed;
  int64_t steps = 300;
  uint64_t seed = 1;
  std::string csv_file;
  samples::Hyperparameters hyperparameters{
      .micro_batch = 64, .accumulation = 1, .lr = 1e-2, .weight_decay = 0.0, .warmup = 20};
  CLI::App app("Trains a small classifier on synthetic data with ZeRO.", "mlp");
  app.option_defaults()->always_capture_default();
  deepspeed.add_to(app);
  app.add_option("--steps", steps, "optimizer steps")->check(CLI::NonNegativeNumber);
  app.add_option("--seed", seed, "of initial weights and data");
  app.add_option("--csv", csv_file, "file to which each step writes a line")->type_name("FILE");
  hyperparameters.add_to(app);
  if (!samples::parse_arguments(app, argc, argv)) return 0;

  torch::manual_seed(seed);
  torch::nn::Sequential model(torch::nn::Linear(kInputs, kHidden), torch::nn::ReLU(),
                              torch::nn::Linear(kHidden, kClasses));
  zerorun::InitializeOptions options;
  options.arguments = hyperparameters.arguments(steps);
  options.output_folder = samples::folder_of(csv_file);
  zerorun::Engine engine = zerorun::initialize(*model, deepspeed.config_file(), options);

  zerorun::Communicator& ranks = engine.mesh().data();
  const bool talks = engine.communicator().rank() == 0;
  const zerorun::BatchConfig& batch = engine.config().batch;
  const at::Tensor teacher = random_normal({kInputs, kClasses}, seed);
  std::optional<samples::CsvLog> csv;
  if (talks && !csv_file.empty()) csv.emplace(csv_file);
  zerorun::LiveLine live(engine, {.steps = steps});
  double accuracy = 0;

  for (int64_t step = 0, batches = 0; step < steps; ++step) {
    const double lr = engine.get_lr().front(), loss_scale = engine.loss_scale();
    at::Tensor sums = at::zeros({2}, at::kDouble);  // loss and accuracy, summed over micro-steps and ranks
    for (int64_t micro_step = 0; micro_step < batch.gradient_accumulation_steps; ++micro_step, ++batches) {
      // Each rank draws its own share of the global batch.
      const uint64_t batch_seed = seed + 1 + batches * ranks.world_size() + ranks.rank();
      at::Tensor points = random_normal({batch.micro_batch_size_per_gpu, kInputs}, batch_seed);
      at::Tensor labels = at::matmul(points, teacher).argmax(1).to(engine.device());
      at::Tensor logits = model->forward(points.to(engine.device(), engine.dtype())).to(torch::kFloat);
      at::Tensor loss = torch::nn::functional::cross_entropy(logits, labels);
      engine.backward(loss);
      engine.step();
      sums[0] += loss.item<double>();
      sums[1] += logits.argmax(1).eq(labels).to(at::kDouble).mean().item<double>();
    }
    ranks.all_reduce(sums, "loss and accuracy")->wait();
    sums /= batch.gradient_accumulation_steps * ranks.world_size();
    if (!talks) continue;
    if (csv) {
      csv->write({step, sums[0].item<double>(), engine.get_global_grad_norm(), lr, loss_scale,
                  engine.skipped_steps()});
    }
    live.show({.steps = step + 1,
               .loss = sums[0].item<double>(),
               .lr = lr,
               .grad_norm = engine.get_global_grad_norm()});
    accuracy = sums[1].item<double>();
  }
  live.end();
  if (talks && steps > 0) std::printf("accuracy in the last step: %.3f\n", accuracy);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return zerorun::run_program([&] { return run(argc, argv); });
}
