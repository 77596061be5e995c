#include "tests/engine/recomputed_model.h"

#include "activations/recomputable.h"
#include "engine/engine.h"
#include "engine/gathered_parameters.h"
#include "tests/engine/net.h"
#include "tests/support/expectations.h"

namespace zerorun::testing {

FeedForward::FeedForward(int64_t hidden, double dropout)
    : up(register_module("up", torch::nn::Linear(hidden, 4 * hidden))),
      down(register_module("down", torch::nn::Linear(4 * hidden, hidden))),
      half(register_module("half", std::make_shared<torch::nn::Module>())),
      dropout(dropout) {}

at::Tensor FeedForward::forward(const at::Tensor& x) {
  ++forwards;
  const at::Tensor wide = at::dropout(at::gelu(up(x)), dropout, is_training());
  return x + recomputable(
                 *half,
                 [this](const at::Tensor& given) {
                   ++of_half;
                   return down(given);
                 },
                 wide);
}

BlockModel::BlockModel(int64_t count, int64_t hidden, double dropout)
    : embedding(register_module("embedding", torch::nn::Embedding(kVocab, hidden))) {
  for (int64_t index = 0; index < count; ++index) {
    blocks.push_back(
        register_module("block" + std::to_string(index), std::make_shared<FeedForward>(hidden, dropout)));
  }
  fill(*this, 11);
}

at::Tensor BlockModel::run_blocks(at::Tensor x) {
  for (const auto& block : blocks) x = recomputable(*block, x);
  return x;
}

at::Tensor BlockModel::loss_of(const at::Tensor& x, const at::Tensor& tokens) {
  const at::Tensor logits = at::linear(x, embedding->weight).to(at::kFloat);
  return at::cross_entropy_loss(logits.slice(1, 0, -1).reshape({-1, kVocab}),
                                tokens.slice(1, 1).reshape({-1}));
}

at::Tensor BlockModel::loss(const at::Tensor& tokens) {
  return loss_of(run_blocks(embedding(tokens)), tokens);
}

std::string recomputing(const std::string& how) {
  return how.empty() ? "" : R"(, "zerorun": {"recompute": {)" + how + "}}";
}

std::string block_config(int stage, const std::string& more, int accumulation, const std::string& limits) {
  return R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.1, "gradient_accumulation_steps": )" +
         std::to_string(accumulation) +
         R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": )" +
         std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0)" + limits + "}" + more + "}";
}

at::Tensor block_tokens(int step, int micro, int rank) {
  at::Generator generator = at::detail::createCPUGenerator(100 * step + 10 * micro + rank + 1);
  return at::randint(BlockModel::kVocab, {2, 6}, generator, at::kLong);
}

BlockRun train_blocks(const std::string& config, std::shared_ptr<Communicator> communicator, double dropout,
                      bool plain_backward, int64_t hidden) {
  torch::manual_seed(5);
  BlockModel model(4, hidden, dropout);
  InitializeOptions options;
  options.bucket_numel = 800;
  Engine engine = make_engine(model, config, communicator, options);
  BlockRun run;
  for (int step = 0; step < kBlockSteps; ++step) {
    if (step == kBlockSteps - 1) communicator->volume().reset();
    for (int micro = 0; micro < engine.config().batch.gradient_accumulation_steps; ++micro) {
      const at::Tensor loss = [&] {
        const AutocastScope autocast = engine.autocast();
        return model.loss(block_tokens(step, micro, communicator->rank()));
      }();
      if (plain_backward) {
        engine.scale(loss).backward();
      } else {
        engine.backward(loss);
      }
      engine.step();
      run.losses.push_back(loss.detach());
    }
  }
  run.gathered = communicator->volume().elements(Collective::all_gather);
  for (const auto& block : model.blocks) {
    run.forwards.push_back(block->forwards);
    run.of_halves += block->of_half;
  }
  run.in_files = engine.bytes_by_category().in_files;
  GatheredParameters whole(engine, model.parameters());
  run.parameters = copies_of(model);
  return run;
}

void expect_same_bits(const BlockRun& found, const BlockRun& expected) {
  expect_same(found.losses, expected.losses, "losses");
  expect_same(found.parameters, expected.parameters, "parameters");
}

}  // namespace zerorun::testing
