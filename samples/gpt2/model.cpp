#include "samples/gpt2/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <zerorun/program.h>

#include <cmath>
#include <string>
#include <tuple>

namespace zerorun {
namespace {

constexpr double kInitStd = 0.02;
constexpr double kLayerNormEps = 1e-5;
constexpr int64_t kIgnoredLabel = -100;  // LibTorch's default ignore_index

at::Tensor normal(at::IntArrayRef shape, double std, at::Generator& generator) {
  return at::normal(0.0, std, shape, generator);
}

torch::nn::LayerNorm layer_norm(int64_t hidden) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({hidden}).eps(kLayerNormEps));
}

torch::nn::Embedding embedding(int64_t count, int64_t hidden, at::Generator& generator) {
  return torch::nn::Embedding(
      torch::nn::EmbeddingOptions(count, hidden)._weight(normal({count, hidden}, kInitStd, generator)));
}

// A linear layer whose weight is (in, out), the transpose of torch::nn::Linear's.
struct Conv1D : torch::nn::Module {
  Conv1D(int64_t in, int64_t out, double std, at::Generator& generator)
      : weight(register_parameter("weight", normal({in, out}, std, generator))),
        bias(register_parameter("bias", at::zeros({out}))) {}

  at::Tensor forward(const at::Tensor& x) {  // (B, T, in) -> (B, T, out)
    at::Tensor rows = at::addmm(bias, x.reshape({-1, x.size(-1)}), weight);
    return rows.view({x.size(0), x.size(1), rows.size(1)});
  }

  at::Tensor weight;  // (in, out)
  at::Tensor bias;    // (out)
};

struct Attention : torch::nn::Module {
  Attention(const Gpt2Options& options, double residual_std, at::Generator& generator)
      : heads(options.heads),
        c_attn(register_module(
            "c_attn", std::make_shared<Conv1D>(options.hidden, 3 * options.hidden, kInitStd, generator))),
        c_proj(register_module(
            "c_proj", std::make_shared<Conv1D>(options.hidden, options.hidden, residual_std, generator))) {}

  at::Tensor forward(const at::Tensor& x) {  // (B, T, C)
    const int64_t batch = x.size(0), length = x.size(1), hidden = x.size(2);
    auto split = [&](const at::Tensor& part) {  // (B, T, C) -> (B, heads, T, C / heads)
      return part.view({batch, length, heads, hidden / heads}).transpose(1, 2);
    };
    const std::vector<at::Tensor> qkv = c_attn->forward(x).split(hidden, 2);
    at::Tensor y = at::scaled_dot_product_attention(split(qkv[0]), split(qkv[1]), split(qkv[2]), std::nullopt,
                                                    /*dropout_p=*/0.0, /*is_causal=*/true);
    return c_proj->forward(y.transpose(1, 2).reshape({batch, length, hidden}));
  }

  int64_t heads;
  std::shared_ptr<Conv1D> c_attn;
  std::shared_ptr<Conv1D> c_proj;
};

struct Mlp : torch::nn::Module {
  Mlp(const Gpt2Options& options, double residual_std, at::Generator& generator)
      : c_fc(register_module(
            "c_fc", std::make_shared<Conv1D>(options.hidden, 4 * options.hidden, kInitStd, generator))),
        c_proj(register_module("c_proj", std::make_shared<Conv1D>(4 * options.hidden, options.hidden,
                                                                  residual_std, generator))) {}

  at::Tensor forward(const at::Tensor& x) { return c_proj->forward(at::gelu(c_fc->forward(x), "tanh")); }

  std::shared_ptr<Conv1D> c_fc;
  std::shared_ptr<Conv1D> c_proj;
};

struct Block : torch::nn::Module {
  // residual_std: the projections that add to the residual stream start smaller, as the stream sums 2 *
  // layers of them.
  Block(const Gpt2Options& options, double residual_std, at::Generator& generator)
      : ln_1(register_module("ln_1", layer_norm(options.hidden))),
        attn(register_module("attn", std::make_shared<Attention>(options, residual_std, generator))),
        ln_2(register_module("ln_2", layer_norm(options.hidden))),
        mlp(register_module("mlp", std::make_shared<Mlp>(options, residual_std, generator))) {}

  at::Tensor forward(const at::Tensor& x) {  // (B, T, C)
    at::Tensor middle = x + attn->forward(ln_1->forward(x));
    return middle + mlp->forward(ln_2->forward(middle));
  }

  torch::nn::LayerNorm ln_1;
  std::shared_ptr<Attention> attn;
  torch::nn::LayerNorm ln_2;
  std::shared_ptr<Mlp> mlp;
};

}  // namespace

struct Gpt2Impl::Transformer : torch::nn::Module {
  Transformer(const Gpt2Options& options, at::Generator generator)
      : wte(register_module("wte", embedding(options.vocab, options.hidden, generator))),
        wpe(register_module("wpe", embedding(options.positions, options.hidden, generator))),
        h(register_module("h", torch::nn::ModuleList())),
        ln_f(layer_norm(options.hidden)) {
    const double residual_std = kInitStd / std::sqrt(2.0 * static_cast<double>(options.layers));
    for (int64_t layer = 0; layer < options.layers; ++layer) {
      blocks.push_back(std::make_shared<Block>(options, residual_std, generator));
      h->push_back(blocks.back());
    }
    register_module("ln_f", ln_f);  // after the blocks: the order of parameters is Hugging Face's
  }

  at::Tensor forward(const at::Tensor& tokens) {  // (B, T) -> (B, T, C)
    at::Tensor x = wte->forward(tokens) + wpe->forward(at::arange(tokens.size(1), tokens.options()));
    for (const auto& block : blocks) x = block->forward(x);
    return ln_f->forward(x);
  }

  torch::nn::Embedding wte;
  torch::nn::Embedding wpe;
  torch::nn::ModuleList h;
  torch::nn::LayerNorm ln_f;
  std::vector<std::shared_ptr<Block>> blocks;
};

Gpt2Impl::Gpt2Impl(const Gpt2Options& options) : options_(options) {
  ZR_CHECK(
      options.heads > 0 && options.hidden % options.heads == 0,
      std::to_string(options.heads) + " heads do not divide hidden size " + std::to_string(options.hidden));
  transformer_ = register_module(
      "transformer", std::make_shared<Transformer>(options, at::detail::createCPUGenerator(options.seed)));
}

at::Tensor Gpt2Impl::forward(const at::Tensor& tokens) {
  return at::linear(transformer_->forward(tokens), transformer_->wte->weight).to(at::kFloat);
}

at::Tensor Gpt2Impl::loss(const at::Tensor& tokens) {
  // Position t predicts token t + 1; the last position has nothing to predict.
  at::Tensor labels = at::constant_pad_nd(tokens.slice(1, 1), {0, 1}, kIgnoredLabel);  // (B, T)
  at::Tensor logits = forward(tokens);                                                 // (B, T, V)
  return at::cross_entropy_loss(logits.view({-1, logits.size(2)}), labels.view(-1), /*weight=*/{},
                                at::Reduction::Mean, kIgnoredLabel);
}

}  // namespace zerorun
