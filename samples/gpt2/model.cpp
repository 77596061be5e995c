#include "samples/gpt2/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <zerorun/program.h>
#include <zerorun/recomputation.h>

#include <cmath>
#include <string>
#include <tuple>

namespace samples {
namespace {

constexpr double kInitStd = 0.02;
constexpr int64_t kIgnoredLabel = -100;  // LibTorch's default ignore_index

at::Tensor normal(at::IntArrayRef shape, double std, at::Generator& generator) {
  return at::normal(0.0, std, shape, generator);
}

torch::nn::LayerNorm layer_norm(const Gpt2Options& options) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.hidden}).eps(options.layer_norm_eps));
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

// The inputs of a layer's attention besides x.
struct Context {
  at::Tensor mask;                                      // (B, 1, T, T) bool, or undefined: causal
  std::pair<at::Tensor, at::Tensor>* cached = nullptr;  // this layer's keys and values; null: no cache
  int64_t positions = 0;                                // of the cache
  int64_t position = 0;                                 // of the first token
};

// Returns a mask (B, 1, T, T). Each token attends to the tokens (last dimension) up to itself that are not
// padding.
at::Tensor causal_mask(const at::Tensor& attention_mask) {
  const int64_t length = attention_mask.size(1);
  const at::Tensor causal = at::ones({length, length}, attention_mask.options().dtype(at::kBool)).tril();
  const at::Tensor itself = at::eye(length, attention_mask.options().dtype(at::kBool));
  // Padding attends to itself too: a token that attends to nothing would get NaN.
  return causal.logical_and(attention_mask.to(at::kBool).view({-1, 1, 1, length})).logical_or(itself);
}

// logits: (B, T, V); labels: (B, T).
at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& labels, at::Reduction::Reduction reduction) {
  return at::cross_entropy_loss(logits.view({-1, logits.size(2)}), labels.view(-1), /*weight=*/{}, reduction,
                                kIgnoredLabel);
}

struct Attention : torch::nn::Module {
  Attention(const Gpt2Options& options, double residual_std, at::Generator& generator)
      : head_size(options.hidden / options.heads),
        c_attn(register_module(
            "c_attn", std::make_shared<Conv1D>(options.hidden, 3 * options.hidden, kInitStd, generator))),
        c_proj(register_module(
            "c_proj", std::make_shared<Conv1D>(options.hidden, options.hidden, residual_std, generator))) {}

  // x and the result: (B, T, C). With tensor parallelism c_attn gives this rank's heads only, so their number
  // is taken from its result.
  at::Tensor forward(const at::Tensor& x, const Context& context) {
    const int64_t batch = x.size(0), length = x.size(1);
    auto split = [&](const at::Tensor& part) {  // (B, T, heads * D) -> (B, heads, T, D)
      return part.view({batch, length, -1, head_size}).transpose(1, 2);
    };
    const std::vector<at::Tensor> qkv = c_attn->forward(x).chunk(3, 2);
    at::Tensor keys = split(qkv[1]), values = split(qkv[2]);
    if (context.cached) {
      auto& [all_keys, all_values] = *context.cached;
      for (at::Tensor* all : {&all_keys, &all_values}) {
        if (!all->defined())
          *all = at::empty({batch, keys.size(1), context.positions, head_size}, keys.options());
      }
      all_keys.narrow(2, context.position, length).copy_(keys);
      all_values.narrow(2, context.position, length).copy_(values);
      keys = all_keys.narrow(2, 0, context.position + length);
      values = all_values.narrow(2, 0, context.position + length);
    }
    // If there are cached tokens, there is only one new token. It attends to all tokens, so it needs no mask.
    const bool is_causal = !context.mask.defined() && context.position == 0;
    at::Tensor y = at::scaled_dot_product_attention(
        split(qkv[0]), keys, values, context.mask.defined() ? std::optional(context.mask) : std::nullopt,
        /*dropout_p=*/0.0, is_causal);
    return c_proj->forward(y.transpose(1, 2).reshape({batch, length, -1}));
  }

  int64_t head_size;
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
  // residual_std: initial standard deviation of the projections that add to the residual stream. It is
  // smaller than kInitStd, because the residual stream is the sum of 2 * layers projections.
  Block(const Gpt2Options& options, double residual_std, at::Generator& generator)
      : ln_1(register_module("ln_1", layer_norm(options))),
        attn(register_module("attn", std::make_shared<Attention>(options, residual_std, generator))),
        ln_2(register_module("ln_2", layer_norm(options))),
        mlp(register_module("mlp", std::make_shared<Mlp>(options, residual_std, generator))) {}

  at::Tensor forward(const at::Tensor& x, const Context& context) {  // (B, T, C)
    at::Tensor middle = x + attn->forward(ln_1->forward(x), context);
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
        ln_f(layer_norm(options)) {
    const double residual_std = kInitStd / std::sqrt(2.0 * static_cast<double>(options.layers));
    for (int64_t layer = 0; layer < options.layers; ++layer) {
      blocks.push_back(std::make_shared<Block>(options, residual_std, generator));
      h->push_back(blocks.back());
    }
    register_module("ln_f", ln_f);  // after the blocks, as in Hugging Face's order of parameters
  }

  at::Tensor forward(const at::Tensor& tokens, Context context,
                     KeyValueCache* cache) {  // (B, T) -> (B, T, C)
    at::Tensor x = embed(tokens, context.position);
    for (size_t layer = 0; layer < blocks.size(); ++layer) {
      if (cache) context.cached = &cache->layers[layer];
      const std::shared_ptr<Block>& block = blocks[layer];
      x = zerorun::recomputable(
          *block, [block, context](const at::Tensor& input) { return block->forward(input, context); }, x);
    }
    return ln_f->forward(x);
  }

  // `begin`: the position of the first token.
  at::Tensor embed(const at::Tensor& tokens, int64_t begin) {
    return wte->forward(tokens) + wpe->forward(at::arange(begin, begin + tokens.size(1), tokens.options()));
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
  for (const at::Tensor& parameter : parameters()) numel_ += parameter.numel();
}

zerorun::TensorPlan Gpt2Impl::tensor_plan() const {
  using Style = zerorun::TensorStyle;
  const int64_t head = options_.hidden / options_.heads;
  return {{"transformer.wte", Style::embedding_rowwise},  // also the output layer
          {"transformer.h.*.attn.c_attn", Style::colwise, {.unit = head, .blocks = 3, .transposed = true}},
          {"transformer.h.*.attn.c_proj", Style::rowwise, {.unit = head, .transposed = true}},
          {"transformer.h.*.mlp.c_fc", Style::colwise, {.transposed = true}},
          {"transformer.h.*.mlp.c_proj", Style::rowwise, {.transposed = true}}};
}

at::Tensor Gpt2Impl::forward(const at::Tensor& tokens, const at::Tensor& attention_mask) {
  Context context;
  if (attention_mask.defined()) context.mask = causal_mask(attention_mask);
  return at::linear(transformer_->forward(tokens, context, nullptr), transformer_->wte->weight)
      .to(at::kFloat);
}

at::Tensor Gpt2Impl::next_logits(const at::Tensor& tokens, KeyValueCache& cache) {
  at::NoGradGuard no_grad;
  const int64_t length = tokens.size(1);
  ZR_CHECK(cache.length + length <= options_.positions, "more tokens than the model has positions");
  ZR_CHECK(cache.length == 0 || length == 1, "one token at a time behind a cache");
  cache.layers.resize(static_cast<size_t>(options_.layers));
  Context context;
  context.positions = options_.positions;
  context.position = cache.length;
  const at::Tensor x = transformer_->forward(tokens, context, &cache).select(1, length - 1);
  cache.length += length;
  return at::linear(x, transformer_->wte->weight).to(at::kFloat);
}

at::Tensor Gpt2Impl::loss(const at::Tensor& tokens, const at::Tensor& attention_mask) {
  return loss_of(forward(tokens, attention_mask), labels_of(tokens, attention_mask), at::Reduction::Mean);
}

at::Tensor Gpt2Impl::labels_of(const at::Tensor& tokens, const at::Tensor& attention_mask) {
  at::Tensor next = tokens.slice(1, 1);
  if (attention_mask.defined()) next = next.masked_fill(attention_mask.slice(1, 1).eq(0), kIgnoredLabel);
  // Position t predicts token t + 1; the last position has nothing to predict.
  return at::constant_pad_nd(next, {0, 1}, kIgnoredLabel);
}

zerorun::MicroBatch Gpt2Impl::micro_batch(const at::Tensor& tokens, const at::Tensor& attention_mask) {
  zerorun::MicroBatch batch{.inputs = {tokens}, .labels = {labels_of(tokens, attention_mask)}};
  if (attention_mask.defined()) batch.inputs.push_back(attention_mask);
  return batch;
}

zerorun::Pipeline Gpt2Impl::pipeline() {
  using zerorun::Tensors;
  const std::shared_ptr<Transformer> model = transformer_;
  // Layers pass x, and the mask of attention behind it if there is one.
  const auto with_mask = [](const at::Tensor& x, const Tensors& inputs) {
    return inputs.size() > 1 ? Tensors{x, inputs[1]} : Tensors{x};
  };
  zerorun::Pipeline pipeline;
  pipeline.layers.push_back({.name = "embeddings",
                             .tensors = {model->wte->weight, model->wpe->weight},
                             .forward = [model, with_mask](const Tensors& inputs) {
                               Tensors outputs = with_mask(model->embed(inputs.at(0), 0), inputs);
                               if (outputs.size() > 1) outputs[1] = causal_mask(outputs[1]);
                               return outputs;
                             }});
  for (size_t number = 0; number < model->blocks.size(); ++number) {
    const std::shared_ptr<Block> block = model->blocks[number];
    pipeline.layers.push_back({.name = "h." + std::to_string(number),
                               .tensors = block->parameters(),
                               .forward = [block, with_mask](const Tensors& inputs) {
                                 Context context;
                                 if (inputs.size() > 1) context.mask = inputs[1];
                                 return with_mask(block->forward(inputs.at(0), context), inputs);
                               }});
  }
  Tensors of_head = model->ln_f->parameters();
  of_head.push_back(model->wte->weight);  // tied: the first stage has it too
  pipeline.layers.push_back(
      {.name = "head", .tensors = of_head, .forward = [model](const Tensors& inputs) {
         return Tensors{at::linear(model->ln_f->forward(inputs.at(0)), model->wte->weight).to(at::kFloat)};
       }});
  pipeline.loss = [](const Tensors& logits, const Tensors& labels) {
    return loss_of(logits.at(0), labels.at(0), labels.size() > 1 ? at::Reduction::Sum : at::Reduction::Mean);
  };
  return pipeline;
}

}  // namespace samples
