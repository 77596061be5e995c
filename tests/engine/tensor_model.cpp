#include "tests/engine/tensor_model.h"

#include "activations/recomputable.h"

namespace zerorun::testing {
namespace {

namespace F = torch::nn::functional;

// Values that do not depend on the order in which parameters are made.
at::Tensor initial(at::IntArrayRef sizes, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator) * 0.2;
}

at::Tensor rotated(const at::Tensor& heads) {  // (B, H, T, D)
  const int64_t half = heads.size(-1) / 2;
  const at::Tensor positions = at::arange(heads.size(-2), at::kFloat).unsqueeze(1);
  const at::Tensor angle = (positions * at::pow(0.1, at::arange(half, at::kFloat))).to(heads.scalar_type());
  const at::Tensor first = heads.slice(-1, 0, half), second = heads.slice(-1, half);
  const at::Tensor cos = angle.cos().to(heads.scalar_type()), sin = angle.sin().to(heads.scalar_type());
  return at::cat({first * cos - second * sin, second * cos + first * sin}, -1);
}

}  // namespace

DecoderImpl::DecoderImpl(const DecoderOptions& given) : options(given) {
  const int64_t hidden = options.hidden(), queries = options.heads * options.head_size,
                keys = options.key_heads * options.head_size;
  uint64_t seed = 1;
  // A module with a weight, and a bias unless the model is gated, as a submodule per name.
  auto add = [&](const std::string& name, at::IntArrayRef sizes, bool bias, bool trained = true) {
    torch::nn::Module* module = this;
    std::string rest = name;
    while (!rest.empty()) {
      const size_t dot = rest.find('.');
      const std::string part = rest.substr(0, dot);
      rest = dot == std::string::npos ? "" : rest.substr(dot + 1);
      const auto children = module->named_children();
      module = children.contains(part)
                   ? children[part].get()
                   : module->register_module(part, std::make_shared<torch::nn::Module>()).get();
    }
    at::Tensor weight = initial(sizes, ++seed);
    if (sizes.size() == 1) weight = 1 + weight;
    module->register_parameter("weight", weight, trained);
    if (bias) module->register_parameter("bias", initial({sizes[0]}, ++seed), trained);
  };
  const bool biased = !options.gated, base = !options.lora;
  add("embedding", {options.vocab, hidden}, false, base);
  for (int64_t number = 0; number < options.layers; ++number) {
    const std::string layer = "layers." + std::to_string(number) + ".";
    add(layer + "norm", {hidden}, biased, base);
    if (options.fused) {
      add(layer + "qkv", {queries + 2 * keys, hidden}, biased, base);
    } else {
      add(layer + "q", {queries, hidden}, biased, base);
      add(layer + "k", {keys, hidden}, biased, base);
      add(layer + "v", {keys, hidden}, biased, base);
    }
    if (options.head_norms) {
      add(layer + "q_norm", {options.head_size}, false);
      add(layer + "k_norm", {options.head_size}, false);
    }
    add(layer + "o", {hidden, queries}, biased, base);
    if (options.lora) {
      add(layer + "q_in", {3, hidden}, false);
      add(layer + "q_out", {queries, 3}, false);
      add(layer + "o_in", {3, queries}, false);
      add(layer + "o_out", {hidden, 3}, false);
    }
    add(layer + "mlp_norm", {hidden}, biased, base);
    add(layer + "up", {48, hidden}, biased, base);
    if (options.gated) add(layer + "gate", {48, hidden}, false, base);
    add(layer + "down", {hidden, 48}, biased, base);
  }
  add("last_norm", {hidden}, biased, base);
  if (!options.tied) add("head", {options.vocab, hidden}, false, base);
}

at::Tensor DecoderImpl::linear(const std::string& name, const at::Tensor& x) {
  const auto parameters = named_parameters();
  const at::Tensor* bias = parameters.find(name + ".bias");
  return at::linear(x, parameters[name + ".weight"], bias ? std::optional(*bias) : std::nullopt);
}

at::Tensor DecoderImpl::norm(const std::string& name, const at::Tensor& x) {
  const auto parameters = named_parameters();
  const at::Tensor& weight = parameters[name + ".weight"];
  if (const at::Tensor* bias = parameters.find(name + ".bias"))
    return at::layer_norm(x, {x.size(-1)}, weight, *bias);
  return x * (x.square().mean(-1, true) + 1e-5).rsqrt() * weight;
}

at::Tensor DecoderImpl::attention(const std::string& prefix, const at::Tensor& x) {
  const int64_t rows = x.size(0), length = x.size(1);
  auto heads = [&](const at::Tensor& all) {
    return all.view({rows, length, -1, options.head_size}).transpose(1, 2);
  };
  at::Tensor query, key, value;
  if (options.fused) {
    const auto parts = linear(prefix + "qkv", x).chunk(3, -1);
    query = parts[0], key = parts[1], value = parts[2];
  } else {
    query = linear(prefix + "q", x), key = linear(prefix + "k", x), value = linear(prefix + "v", x);
  }
  if (options.lora) query = query + linear(prefix + "q_out", linear(prefix + "q_in", x)) * 2;
  query = heads(query), key = heads(key), value = heads(value);
  if (options.head_norms) query = norm(prefix + "q_norm", query), key = norm(prefix + "k_norm", key);
  if (options.gated) query = rotated(query), key = rotated(key);
  const int64_t group = query.size(1) / key.size(1);
  key = key.repeat_interleave(group, 1), value = value.repeat_interleave(group, 1);
  const at::Tensor mixed = at::scaled_dot_product_attention(query, key, value, {}, 0.0, true);
  const at::Tensor joined = mixed.transpose(1, 2).reshape({rows, length, -1});
  at::Tensor result = linear(prefix + "o", joined);
  if (options.lora) result = result + linear(prefix + "o_out", linear(prefix + "o_in", joined)) * 2;
  return result;
}

at::Tensor DecoderImpl::mlp(const std::string& prefix, const at::Tensor& x) {
  const at::Tensor up = linear(prefix + "up", x);
  if (!options.gated) return linear(prefix + "down", at::gelu(up));
  return linear(prefix + "down", at::silu(linear(prefix + "gate", x)) * up);
}

at::Tensor DecoderImpl::layer(int64_t number, const at::Tensor& x) {
  const std::string prefix = "layers." + std::to_string(number) + ".";
  const at::Tensor mixed = x + attention(prefix, norm(prefix + "norm", x));
  return mixed + mlp(prefix, norm(prefix + "mlp_norm", mixed));
}

at::Tensor DecoderImpl::loss(const at::Tensor& tokens) {
  at::Tensor x = embed(tokens);
  const auto layers = named_children()["layers"]->children();
  for (int64_t number = 0; number < options.layers; ++number) {
    x = recomputable(
        *layers[number], [this, number](const at::Tensor& input) { return layer(number, input); }, x);
  }
  return loss_of(logits(x), tokens);
}

at::Tensor DecoderImpl::embed(const at::Tensor& tokens) {
  return at::embedding(named_parameters()["embedding.weight"], tokens);
}

at::Tensor DecoderImpl::logits(const at::Tensor& x) {
  return linear(options.tied ? "embedding" : "head", norm("last_norm", x)).slice(1, 0, -1);
}

at::Tensor DecoderImpl::loss_of(const at::Tensor& logits, const at::Tensor& tokens) const {
  return F::cross_entropy(logits.to(at::kFloat).reshape({-1, options.vocab}),
                          tokens.slice(1, 1).reshape({-1}));
}

TensorPlan plan_of(const DecoderOptions& options) {
  const int64_t group = options.heads / options.key_heads * options.head_size;
  using Style = TensorStyle;
  TensorPlan plan = {{"embedding", Style::embedding_rowwise},
                     {"layers.*.o", Style::rowwise, {.unit = group}},
                     {"layers.*.up", Style::colwise},
                     {"layers.*.down", Style::rowwise}};
  if (options.fused) {
    plan.push_back({"layers.*.qkv", Style::colwise, {.unit = options.head_size, .blocks = 3}});
  } else {
    plan.push_back({"layers.*.q", Style::colwise, {.unit = group}});
    plan.push_back({"layers.*.k", Style::colwise, {.unit = options.head_size}});
    plan.push_back({"layers.*.v", Style::colwise, {.unit = options.head_size}});
  }
  if (options.gated) plan.push_back({"layers.*.gate", Style::colwise});
  if (options.head_norms) {
    plan.push_back({"layers.*.q_norm", Style::replicated_with_grad_allreduce});
    plan.push_back({"layers.*.k_norm", Style::replicated_with_grad_allreduce});
  }
  if (options.lora) {
    plan.push_back({"layers.*.q_out", Style::colwise, {.unit = group}});
    plan.push_back({"layers.*.o_in", Style::rowwise, {.unit = group}});
  }
  if (!options.tied) plan.push_back({"head", Style::colwise_gather_output});
  return plan;
}

}  // namespace zerorun::testing
