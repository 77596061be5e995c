// oslo_gpt2: trains a GPT-2 on the contexts of a question-answering file, as OSLO's ZeRO tutorial does. A
// ZeroRedundancyOptimizer wraps the program's own torch::optim::Adam.
//
//   zerorun --num_gpus 2 oslo_gpt2 --data squad.json --init GPT2_FOLDER --save FOLDER
#include <torch/torch.h>
#include <zerorun/zerorun.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "samples/common/arguments.h"
#include "samples/gpt2/model.h"
#include "samples/gpt2/model_folder.h"
#include "samples/gpt2/weights.h"
#include "samples/tokenizer/padding.h"
#include "samples/tokenizer/records.h"
#include "samples/tokenizer/tokenizer_files.h"

namespace samples {
namespace {

using zerorun::UserError;

struct Options {
  std::string data;
  std::string field = "context";
  std::string init;
  std::string save;
  bool resume = false;
  int64_t level = 2;
  int64_t batch = 4;
  int64_t length = 64;
  int64_t steps = 100;
  int64_t save_every = 50;
  double lr = 3e-5;
};

bool parse(int argc, char** argv, Options& options) {
  CLI::App app("Trains a GPT-2 on question-answering contexts with a ZeroRedundancyOptimizer.", "oslo_gpt2");
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data, "JSON, or JSON lines")->type_name("FILE")->required();
  app.add_option("--field", options.field, "key of the texts in it");
  app.add_option("--init", options.init,
                 "Hugging Face folder: config.json, tokenizer, and weights if it has any")
      ->type_name("FOLDER")
      ->required();
  app.add_option("--level", options.level,
                 "1: optimizer states are partitioned, 2: also gradients, 3: also parameters")
      ->check(CLI::Range(1, 3));
  app.add_option("--batch", options.batch, "texts per step on all ranks")->check(CLI::Range(1, 1 << 20));
  app.add_option("--length", options.length, "tokens of a text that are used")->check(CLI::Range(2, 1 << 20));
  app.add_option("--steps", options.steps, "optimizer steps")->check(CLI::NonNegativeNumber);
  app.add_option("--lr", options.lr, "learning rate")->check(CLI::NonNegativeNumber);
  app.add_option("--save", options.save, "folder for checkpoints and the trained weights")
      ->type_name("FOLDER");
  app.add_option("--save-every", options.save_every, "steps between checkpoints")->check(CLI::PositiveNumber);
  app.add_flag("--resume", options.resume, "continue from the latest checkpoint in --save");
  return parse_arguments(app, argc, argv);
}

// Tokenises the texts. Leaves out texts of fewer than two tokens, which have nothing to predict.
std::vector<std::vector<int32_t>> tokenize(const Options& options, const Tokenizer& tokenizer) {
  std::vector<std::vector<int32_t>> texts;
  Encoder encoder(tokenizer);
  for_each_text(options.data, options.field, [&](std::string_view text) {
    std::vector<int32_t> tokens;
    encoder.start();
    encoder.encode(text, tokens);
    if (tokens.size() >= 2) texts.push_back(std::move(tokens));
  });
  if (texts.empty()) throw UserError(options.data + ": no text has two tokens or more");
  return texts;
}

at::Tensor rows(const std::vector<int64_t>& values, const PaddedTokens& batch, int64_t first, int64_t count) {
  const at::Tensor all = at::tensor(values, at::kLong).view({batch.rows, batch.length});
  return all.narrow(0, first, count);
}

int run(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) return 0;
  const auto ranks = zerorun::connect();
  const int64_t world_size = ranks->world_size();
  if (options.batch % world_size != 0)
    throw UserError("--batch " + std::to_string(options.batch) + " is not a multiple of the " +
                    std::to_string(world_size) + " ranks, which share it");

  const Tokenizer tokenizer = load_tokenizer(options.init);
  const auto texts = tokenize(options, tokenizer);
  const Gpt2Options shape = read_model_config(options.init);
  if (ranks->rank() == 0) warn_of_dropout(options.init);
  if (shape.vocab < tokenizer.size())
    throw UserError(options.init + ": vocab_size " + std::to_string(shape.vocab) +
                    " of config.json is less than the " + std::to_string(tokenizer.size()) +
                    " tokens of the tokenizer");
  if (shape.positions < options.length)
    throw UserError("--length " + std::to_string(options.length) + ": the model has " +
                    std::to_string(shape.positions) + " positions");
  Gpt2 model(shape);
  if (has_weights(options.init)) load_weights(*model, options.init);
  zerorun::ZeroRedundancyOptimizer optimizer(
      torch::optim::Adam(model->parameters(), torch::optim::AdamOptions(options.lr)),
      {.overlap_communication = true,
       .partition_grad = options.level >= 2,
       .partition_parameters = options.level == 3,
       .communicator = ranks});
  zerorun::Engine& engine = optimizer.engine();
  if (options.resume) engine.load_checkpoint(options.save);
  std::shared_ptr<zerorun::checkpoint::FolderLock> save_folder;  // held until the last checkpoint is saved
  if (!options.save.empty()) save_folder = zerorun::reserve_checkpoint_folder(options.save, *ranks);

  const int64_t share = options.batch / world_size;
  const int64_t first = ranks->rank() * share;
  for (int64_t step = engine.global_steps(); step < options.steps; ++step) {
    std::vector<std::vector<int32_t>> chosen;
    for (int64_t row = 0; row < options.batch; ++row)
      chosen.push_back(texts[static_cast<size_t>(step * options.batch + row) % texts.size()]);
    const PaddedTokens batch = pad(chosen, options.length, tokenizer.data().end_token.value_or(0));
    const at::Tensor tokens = rows(batch.tokens, batch, first, share).to(engine.device());
    const at::Tensor mask = rows(batch.attention_mask, batch, first, share).to(engine.device());

    optimizer.zero_grad();
    // Ranks have different numbers of tokens to predict. Each rank's loss is weighted by the rank's number of
    // such tokens, so that the mean over ranks is the mean over all tokens of the batch.
    const int64_t all =
        std::accumulate(batch.attention_mask.begin(), batch.attention_mask.end(), -options.batch);
    const double weight =
        static_cast<double>(world_size * (mask.sum().item<int64_t>() - share)) / static_cast<double>(all);
    at::Tensor loss = model->loss(tokens, mask) * weight;
    loss.backward();
    optimizer.step();

    at::Tensor mean = loss.detach().to(at::kCPU, at::kDouble).view({1});
    ranks->all_reduce(mean, "loss")->wait();
    if (ranks->rank() == 0)
      std::printf("step %lld: loss %.7f\n", static_cast<long long>(step + 1),
                  mean.item<double>() / static_cast<double>(world_size));
    if (!options.save.empty() && (step + 1) % options.save_every == 0) engine.save_checkpoint(options.save);
  }
  engine.wait_for_checkpoint();
  if (options.save.empty()) return 0;
  zerorun::GatheredParameters whole(engine, model->parameters());
  if (ranks->rank() == 0) {
    write_model_config(shape, tokenizer, options.save + "/model");
    save_weights(*model, options.save + "/model/model.safetensors");
  }
  return 0;
}

}  // namespace
}  // namespace samples

int main(int argc, char** argv) {
  return zerorun::run_program([&] { return samples::run(argc, argv); });
}
