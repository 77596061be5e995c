#include "tests/random_meshes/network.h"

#include <sstream>

namespace zerorun::testing {
namespace {

namespace F = torch::nn::functional;
using Kind = LayerOptions::Kind;

at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator) * 0.5;
}

int64_t below(std::mt19937_64& random, int64_t limit) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
}

bool chance(std::mt19937_64& random, int64_t one_in) {
  return below(random, one_in) == 0;
}

}  // namespace

NetworkOptions draw_network(std::mt19937_64& random, int tensor) {
  NetworkOptions options;
  options.head_size = 1 + below(random, 3);
  options.hidden = 4 + below(random, 6);
  options.vocab = std::max<int64_t>(tensor, 5 + below(random, 8));
  options.rows = 1 + below(random, 2);
  options.length = 1 + below(random, 4);
  options.embeds = chance(random, 2);
  options.tied = options.embeds && chance(random, 2);
  for (int64_t count = 1 + below(random, 3); count > 0; --count) {
    LayerOptions layer;
    layer.kind = static_cast<Kind>(below(random, 4));
    layer.form = static_cast<Form>(below(random, 4));
    layer.bias = chance(random, 2);
    layer.transposed = chance(random, 3);
    layer.gated = chance(random, 2);
    layer.head_norms = chance(random, 3);
    layer.twice = chance(random, 4);
    layer.frozen = chance(random, 6);
    layer.key_heads = tensor + below(random, 3);
    layer.heads = layer.key_heads * (1 + below(random, 2));
    layer.fused = layer.heads == layer.key_heads && chance(random, 3);
    layer.inner = tensor + below(random, 9);
    options.layers.push_back(layer);
  }
  options.layers.front().frozen = false;
  return options;
}

std::string describe(const NetworkOptions& options) {
  std::ostringstream text;
  text << "hidden " << options.hidden << ", heads of " << options.head_size << ", vocab " << options.vocab
       << ", " << options.rows << " x " << options.length << (options.embeds ? ", embeds" : "")
       << (options.tied ? ", tied" : "");
  constexpr const char* kKinds[] = {"attention", "mlp", "whole", "gathered"};
  constexpr const char* kForms[] = {"linear", "functional", "matmul", "addmm"};
  for (const LayerOptions& layer : options.layers) {
    text << "; " << kKinds[static_cast<int>(layer.kind)] << " " << kForms[static_cast<int>(layer.form)]
         << (layer.bias ? " bias" : "") << (layer.transposed ? " transposed" : "")
         << (layer.fused ? " fused" : "") << (layer.gated ? " gated" : "")
         << (layer.head_norms ? " head_norms" : "") << (layer.twice ? " twice" : "")
         << (layer.frozen ? " frozen" : "") << " heads " << layer.heads << "/" << layer.key_heads << " inner "
         << layer.inner;
  }
  return text.str();
}

Network::Network(const NetworkOptions& options) : options_(options) {
  const int64_t hidden = options_.hidden, size = options_.head_size;
  using Style = TensorStyle;
  if (options_.embeds) {
    register_parameter("embedding", numbers({options_.vocab, hidden}, ++seed_));
    plan_.push_back({"embedding", Style::embedding_rowwise});
  }
  for (size_t index = 0; index < options_.layers.size(); ++index) {
    const LayerOptions& layer = options_.layers[index];
    const std::string name = "l" + std::to_string(index) + "_";
    register_parameter(name + "norm", 1 + numbers({hidden}, ++seed_), !layer.frozen);
    if (layer.kind == Kind::attention) {
      const int64_t group = layer.heads / layer.key_heads * size;
      if (layer.fused) {
        add(name + "qkv", 3 * layer.heads * size, hidden, layer, Style::colwise, {.unit = size, .blocks = 3});
      } else {
        add(name + "q", layer.heads * size, hidden, layer, Style::colwise, {.unit = group});
        for (const char* part : {"k", "v"})
          add(name + part, layer.key_heads * size, hidden, layer, Style::colwise, {.unit = size});
      }
      if (layer.head_norms) {
        register_parameter(name + "heads", 1 + numbers({size}, ++seed_));
        plan_.push_back({name + "heads", Style::replicated_with_grad_allreduce});
      }
      add(name + "o", hidden, layer.heads * size, layer, Style::rowwise, {.unit = group});
    } else if (layer.kind == Kind::mlp) {
      const int64_t halves = layer.gated && layer.fused ? 2 : 1;
      add(name + "up", halves * layer.inner, hidden, layer, Style::colwise, {.blocks = halves});
      if (layer.gated && !layer.fused) add(name + "gate", layer.inner, hidden, layer, Style::colwise, {});
      add(name + "down", hidden, layer.inner, layer, Style::rowwise, {});
    } else {
      const bool gathers = layer.kind == Kind::gathered;
      add(name + "w", hidden, hidden, layer, gathers ? Style::colwise_gather_output : Style::replicated, {});
    }
  }
  if (!options_.tied) {
    register_parameter("head", numbers({options_.vocab, hidden}, ++seed_));
    plan_.push_back({"head", Style::colwise_gather_output});
  }
}

void Network::add(const std::string& name, int64_t out, int64_t in, const LayerOptions& layer,
                  TensorStyle style, TensorCut cut) {
  cut.transposed = layer.transposed;
  register_parameter(name, layer.transposed ? numbers({in, out}, ++seed_) : numbers({out, in}, ++seed_),
                     !layer.frozen);
  plan_.push_back({name, style, cut});
  if (!layer.bias) return;
  register_parameter(name + "_bias", numbers({out}, ++seed_), !layer.frozen);
  plan_.push_back({name + "_bias", style, cut});
}

at::Tensor Network::multiply(const std::string& name, const at::Tensor& x, const LayerOptions& layer) const {
  const at::Tensor weight = parameter(name);
  const at::Tensor by_outputs = layer.transposed ? weight.t() : weight;
  const at::Tensor bias = layer.bias ? parameter(name + "_bias") : at::Tensor();
  if (layer.form == Form::linear) return at::linear(x, by_outputs, bias);
  if (layer.form == Form::functional) return F::linear(x, by_outputs, bias);
  if (layer.form == Form::addmm && bias.defined()) {
    const at::Tensor rows = at::addmm(bias, x.reshape({-1, x.size(-1)}), by_outputs.t());
    return rows.view({x.size(0), x.size(1), -1});
  }
  const at::Tensor product = at::matmul(x, by_outputs.t());
  return bias.defined() ? product + bias : product;
}

at::Tensor Network::normed(const std::string& name, const at::Tensor& x) const {
  return x * (x.square().mean(-1, true) + 1e-3).rsqrt() * parameter(name);
}

at::Tensor Network::attention(const std::string& name, const at::Tensor& x, const LayerOptions& layer) const {
  auto heads = [&](const at::Tensor& all) {
    return all.view({x.size(0), x.size(1), -1, options_.head_size}).transpose(1, 2);
  };
  at::Tensor query, key, value;
  if (layer.fused) {
    const auto parts = multiply(name + "qkv", x, layer).chunk(3, -1);
    query = parts[0], key = parts[1], value = parts[2];
  } else {
    query = multiply(name + "q", x, layer), key = multiply(name + "k", x, layer);
    value = multiply(name + "v", x, layer);
  }
  query = heads(query.contiguous()), key = heads(key.contiguous()), value = heads(value.contiguous());
  if (layer.head_norms) query = normed(name + "heads", query), key = normed(name + "heads", key);
  const int64_t group = query.size(1) / key.size(1);
  key = key.repeat_interleave(group, 1), value = value.repeat_interleave(group, 1);
  const at::Tensor scores = at::softmax(at::matmul(query, key.transpose(2, 3)), -1);
  const at::Tensor mixed = at::matmul(scores, value).transpose(1, 2).reshape({x.size(0), x.size(1), -1});
  return multiply(name + "o", mixed, layer);
}

at::Tensor Network::mlp(const std::string& name, const at::Tensor& x, const LayerOptions& layer) const {
  at::Tensor up = multiply(name + "up", x, layer);
  if (!layer.gated) return multiply(name + "down", at::gelu(up), layer);
  at::Tensor gate;
  if (layer.fused) {
    const auto halves = up.chunk(2, -1);
    up = halves[0], gate = halves[1];
  } else {
    gate = multiply(name + "gate", x, layer);
  }
  return multiply(name + "down", up * at::silu(gate), layer);
}

at::Tensor Network::loss(uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor tokens = at::randint(options_.vocab, {options_.rows, options_.length}, generator);
  at::Tensor x = options_.embeds ? at::embedding(parameter("embedding"), tokens)
                                 : numbers({options_.rows, options_.length, options_.hidden}, seed + 1)
                                       .to(parameters().front().scalar_type());
  for (size_t index = 0; index < options_.layers.size(); ++index) {
    const LayerOptions& layer = options_.layers[index];
    const std::string name = "l" + std::to_string(index) + "_";
    for (int use = 0; use < (layer.twice ? 2 : 1); ++use) {
      const at::Tensor input = normed(name + "norm", x);
      x = x + (layer.kind == Kind::attention ? attention(name, input, layer)
               : layer.kind == Kind::mlp     ? mlp(name, input, layer)
                                             : multiply(name + "w", input, layer));
    }
  }
  const at::Tensor logits = at::linear(x, parameter(options_.tied ? "embedding" : "head"));
  return at::cross_entropy_loss(logits.reshape({-1, options_.vocab}), tokens.roll(1, 1).reshape({-1}));
}

}  // namespace zerorun::testing
