#include "benchmarks/training_options.h"

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <utility>

namespace zerorun {

void add_model_options(CLI::App& app, samples::Gpt2Options& model) {
  app.add_option("--layers", model.layers)->check(CLI::PositiveNumber);
  app.add_option("--hidden", model.hidden)->check(CLI::PositiveNumber);
  app.add_option("--heads", model.heads)->check(CLI::PositiveNumber);
  app.add_option("--vocab", model.vocab)->check(CLI::PositiveNumber);
  app.add_option("--seq", model.positions)->check(CLI::PositiveNumber);
}

at::Tensor random_tokens(const samples::Gpt2Options& model, int64_t rows, int rank) {
  auto generator = at::detail::createCPUGenerator(rank + 1);
  return torch::randint(0, model.vocab, {rows, model.positions}, generator, torch::kLong);
}

void TrainingOptions::add_to(CLI::App& app) {
  app.add_option("--ranks", ranks)->check(CLI::Range(1, 64));
  add_model_options(app, model);
  app.add_option("--micro-batch", micro_batch)->check(CLI::PositiveNumber);
  app.add_option("--precision", precision)->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_flag("--json", json, "print JSON");
}

nlohmann::json TrainingOptions::config(nlohmann::json zero) const {
  nlohmann::json text{{"train_micro_batch_size_per_gpu", micro_batch},
                      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-4}, {"weight_decay", 0.01}}}}},
                      {"gradient_clipping", 1.0},
                      {"zero_optimization", std::move(zero)}};
  if (precision != "fp32") text[precision]["enabled"] = true;
  if (precision == "fp16") text["fp16"]["loss_scale"] = 1024;  // so that no step is skipped
  return text;
}

}  // namespace zerorun
