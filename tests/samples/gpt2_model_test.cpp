#include <catch2/catch.hpp>

#include "checkpoint/safetensors_reader.h"
#include "samples/gpt2/generate.h"
#include "samples/gpt2/model.h"
#include "samples/gpt2/weights.h"
#include "tests/support/safetensors_files.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace samples;
namespace {

using Catch::Matchers::Contains;

const Gpt2Options kTiny{.layers = 2, .hidden = 8, .heads = 2, .vocab = 256, .positions = 16, .seed = 5};

// Applies `action` to the tensors of a tiny model and writes the result to `file`.
template <typename Action>
void write_changed(const std::filesystem::path& file, Action action) {
  Gpt2 model(kTiny);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& parameter : model->named_parameters())
    tensors[parameter.key()] = parameter->detach().clone();
  action(tensors);
  std::map<std::string, TensorToWrite> views;
  const std::map<at::ScalarType, std::string> dtypes = {{at::kFloat, "F32"},
                                                        {at::kHalf, "F16"},
                                                        {at::kBFloat16, "BF16"},
                                                        {at::kByte, "U8"},
                                                        {at::kDouble, "F64"}};
  for (const auto& [name, tensor] : tensors) {
    views[name] = {dtypes.at(tensor.scalar_type()),
                   tensor.sizes().vec(),
                   {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}};
  }
  write_safetensors(file, views);
}

template <typename Action>
std::string load_error(Action action) {
  const TemporaryFolder folder;
  write_changed(folder / "x.safetensors", action);
  Gpt2 model(kTiny);
  return user_error([&] { load_weights(*model, folder / "x.safetensors"); });
}

bool same_parameters(const Gpt2& a, const Gpt2& b) {
  const std::vector<at::Tensor> left = a->parameters(), right = b->parameters();
  for (size_t i = 0; i < left.size(); ++i) {
    if (!at::equal(left[i], right[i])) return false;
  }
  return left.size() == right.size();
}

// The expected order is that of Hugging Face's GPT2LMHeadModel (vocab 256, hidden 64, 32 positions).
TEST_CASE("parameters have Hugging Face's names, shapes and order") {
  Gpt2 model(Gpt2Options{.layers = 2, .hidden = 64, .heads = 4, .vocab = 256, .positions = 32});
  const auto parameters = model->named_parameters();
  const std::vector<std::pair<std::string, std::string>> block = {{"ln_1.weight", "[64]"},
                                                                  {"ln_1.bias", "[64]"},
                                                                  {"attn.c_attn.weight", "[64, 192]"},
                                                                  {"attn.c_attn.bias", "[192]"},
                                                                  {"attn.c_proj.weight", "[64, 64]"},
                                                                  {"attn.c_proj.bias", "[64]"},
                                                                  {"ln_2.weight", "[64]"},
                                                                  {"ln_2.bias", "[64]"},
                                                                  {"mlp.c_fc.weight", "[64, 256]"},
                                                                  {"mlp.c_fc.bias", "[256]"},
                                                                  {"mlp.c_proj.weight", "[256, 64]"},
                                                                  {"mlp.c_proj.bias", "[64]"}};
  std::vector<std::pair<std::string, std::string>> expected = {{"transformer.wte.weight", "[256, 64]"},
                                                               {"transformer.wpe.weight", "[32, 64]"}};
  for (const char* layer : {"0", "1"}) {
    for (const auto& [name, shape] : block) {
      expected.emplace_back(std::string("transformer.h.") + layer + "." + name, shape);
    }
  }
  expected.emplace_back("transformer.ln_f.weight", "[64]");
  expected.emplace_back("transformer.ln_f.bias", "[64]");

  std::vector<std::pair<std::string, std::string>> found;
  int64_t numel = 0;
  for (const auto& parameter : parameters) {
    found.emplace_back(parameter.key(), to_string(parameter->sizes().vec()));
    numel += parameter->numel();
  }
  CHECK(found == expected);
  CHECK(numel == 118'528);
  CHECK(model->buffers().empty());
}

TEST_CASE("initial weights: normal 0.02, residual projections smaller by sqrt(2 layers), zeros and ones") {
  const int64_t layers = 8;
  Gpt2 model(Gpt2Options{.layers = layers, .hidden = 128, .heads = 4, .vocab = 512, .positions = 256});
  for (const auto& parameter : model->named_parameters()) {
    INFO(parameter.key());
    const std::string name = parameter.key();
    const at::Tensor values = parameter->detach();
    if (name.ends_with(".bias")) {
      CHECK(values.abs().max().item<double>() == 0.0);
    } else if (name.find("ln_") != std::string::npos) {
      CHECK((values - 1).abs().max().item<double>() == 0.0);
    } else {
      const double expected = name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(2.0 * layers) : 0.02;
      const double tolerance =
          5 / std::sqrt(2.0 * static_cast<double>(values.numel()));  // five standard errors
      CHECK(values.std().item<double>() == Approx(expected).epsilon(tolerance));
      CHECK(std::abs(values.mean().item<double>()) < 5 * expected / std::sqrt(values.numel()));
    }
  }
}

TEST_CASE("initial weights depend on the seed alone") {
  torch::manual_seed(1);
  Gpt2 first(kTiny);
  torch::manual_seed(2);
  Gpt2Options other = kTiny;
  other.seed = 6;
  CHECK(same_parameters(first, Gpt2(kTiny)));
  CHECK_FALSE(same_parameters(first, Gpt2(other)));
}

TEST_CASE("a token changes no prediction before it") {
  at::NoGradGuard no_grad;
  Gpt2 model(kTiny);
  at::Tensor tokens = at::arange(16, at::kLong).view({1, 16}) * 3;
  at::Tensor changed = tokens.clone();
  changed[0][9] = 200;
  const at::Tensor before = model->forward(tokens), after = model->forward(changed);
  CHECK(at::equal(before.slice(1, 0, 9), after.slice(1, 0, 9)));
  for (int64_t position = 9; position < 16; ++position) {
    CHECK_FALSE(at::equal(before.select(1, position), after.select(1, position)));
  }
}

TEST_CASE("the loss is the mean over all but the last position, also of short sequences") {
  at::NoGradGuard no_grad;
  Gpt2 model(kTiny);
  at::Tensor tokens = at::randint(256, {3, 7}, at::kLong);
  const at::Tensor log_probabilities = at::log_softmax(model->forward(tokens).to(at::kDouble), 2);
  double sum = 0.0;
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t position = 0; position < 6; ++position) {
      sum -= log_probabilities[row][position][tokens[row][position + 1].item<int64_t>()].item<double>();
    }
  }
  CHECK(model->loss(tokens).item<double>() == Approx(sum / 18).epsilon(1e-6));
}

TEST_CASE("saved weights load into another model") {
  const TemporaryFolder folder;
  Gpt2 model(kTiny);
  save_weights(*model, folder / "x.safetensors");
  Gpt2Options other = kTiny;
  other.seed = 6;
  Gpt2 loaded(other);
  const at::Tensor leaf = loaded->parameters().front();
  load_weights(*loaded, folder / "x.safetensors");
  CHECK(same_parameters(model, loaded));
  CHECK(leaf.is_same(loaded->parameters().front()));
  CHECK(leaf.requires_grad());
}

TEST_CASE("files of the GPT-2 family load: no prefix, masks, a tied head") {
  const TemporaryFolder folder;
  write_changed(folder / "x.safetensors", [](auto& tensors) {
    std::map<std::string, at::Tensor> renamed;
    for (const auto& [name, tensor] : tensors) renamed[name.substr(std::strlen("transformer."))] = tensor;
    renamed["h.0.attn.bias"] = at::ones({1, 1, 16, 16}, at::kByte);
    renamed["h.1.attn.bias"] = at::ones({1, 1, 16, 16});
    renamed["h.1.attn.masked_bias"] = at::full({}, -1e4);
    renamed["lm_head.weight"] = renamed["wte.weight"];
    tensors = renamed;
  });
  Gpt2Options other = kTiny;
  other.seed = 6;
  Gpt2 loaded(other);
  load_weights(*loaded, folder / "x.safetensors");
  CHECK(same_parameters(loaded, Gpt2(kTiny)));
}

TEST_CASE("16-bit files are converted") {
  const TemporaryFolder folder;
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    write_changed(folder / "x.safetensors", [&](auto& tensors) {
      for (auto& [name, tensor] : tensors) tensor = tensor.to(type);
    });
    Gpt2 loaded(kTiny), original(kTiny);
    load_weights(*loaded, folder / "x.safetensors");
    const std::vector<at::Tensor> found = loaded->parameters(), exact = original->parameters();
    for (size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i].scalar_type() == at::kFloat);
      CHECK(at::equal(found[i], exact[i].to(type).to(at::kFloat)));
    }
  }
}

TEST_CASE("files that do not fit name the tensor, what was expected and what was found") {
  const std::string weight = "transformer.h.1.mlp.c_fc.weight";
  CHECK(load_error([](auto&) {}) == "no error");
  CHECK_THAT(load_error([&](auto& tensors) { tensors.erase(weight); }),
             Contains("x.safetensors") && Contains("'" + weight + "' is missing") && Contains("[8, 32]"));
  CHECK_THAT(load_error([&](auto& tensors) {
               tensors[weight] = at::zeros({32, 8});
             }),
             Contains("'" + weight + "'") && Contains("expected shape [8, 32], found [32, 8]"));
  CHECK_THAT(load_error([&](auto& tensors) {
               tensors[weight] = at::zeros({8, 32}, at::kDouble);
             }),
             Contains("'" + weight + "'") && Contains("found F64"));
  CHECK_THAT(load_error([](auto& tensors) { tensors["transformer.h.2.ln_1.bias"] = at::zeros({8}); }),
             Contains("'transformer.h.2.ln_1.bias'") && Contains("no parameter") && Contains("--layers"));
  CHECK_THAT(load_error([](auto& tensors) {
               tensors["lm_head.weight"] = at::zeros({256, 8});
             }),
             Contains("'lm_head.weight' differs from 'transformer.wte.weight'"));
}

TEST_CASE(
    "generated text depends on the seed and has the length asked for, longer than the model's context") {
  Gpt2 model(kTiny);
  const std::vector<int32_t> prompt = {'a', 'b'};
  const auto text = generate(model, prompt, 256, {.count = 40, .seed = 1});
  CHECK(text.size() == 40);
  CHECK(text == generate(model, prompt, 256, {.count = 40, .seed = 1}));
  CHECK(text != generate(model, prompt, 256, {.count = 40, .seed = 2}));
  CHECK(generate(model, prompt, 256, {.count = 0}).empty());
}

TEST_CASE("a cache of keys and values gives the logits of the whole sequence") {
  Gpt2 model(kTiny);
  torch::NoGradGuard no_grad;
  const at::Tensor tokens = torch::randint(256, {2, 16}, torch::kLong);
  const at::Tensor whole = model->forward(tokens);
  KeyValueCache cache;
  at::Tensor logits = model->next_logits(tokens.slice(1, 0, 5), cache);
  for (int64_t position = 5; position < 16; ++position) {
    CHECK(at::allclose(logits, whole.select(1, position - 1), 1e-5, 1e-6));
    logits = model->next_logits(tokens.slice(1, position, position + 1), cache);
  }
  CHECK(at::allclose(logits, whole.select(1, 15), 1e-5, 1e-6));
  CHECK_THROWS_AS(model->next_logits(tokens.slice(1, 0, 1), cache), InternalError);
}

TEST_CASE("padding changes nothing for the tokens that are attended to, and is not predicted") {
  Gpt2 model(kTiny);
  const at::Tensor tokens = torch::randint(256, {2, 10}, torch::kLong);
  at::Tensor mask = torch::ones({2, 10}, torch::kLong);
  CHECK(at::allclose(model->forward(tokens, mask), model->forward(tokens), 1e-5, 1e-6));
  mask.index_put_({1, torch::indexing::Slice(6, 10)}, 0);
  const at::Tensor shorter = tokens.index({torch::indexing::Slice(1, 2), torch::indexing::Slice(0, 6)});
  CHECK(at::allclose(model->forward(tokens, mask)[1].slice(0, 0, 6), model->forward(shorter)[0], 1e-5, 1e-6));
  // The loss is a mean over nine predictions in row 0 and five in row 1.
  const at::Tensor expected = (9 * model->loss(tokens.slice(0, 0, 1)) + 5 * model->loss(shorter)) / 14;
  CHECK(at::allclose(model->loss(tokens, mask), expected, 1e-5, 1e-6));
  // Padding on the left gives no NaN, and its tokens change no logits of other tokens.
  at::Tensor left = torch::ones({2, 10}, torch::kLong);
  left.index_put_({0, torch::indexing::Slice(0, 4)}, 0);
  at::Tensor changed = tokens.clone();
  changed.index_put_({0, torch::indexing::Slice(0, 4)}, 7);
  CHECK(at::allclose(model->forward(tokens, left)[0].slice(0, 4),
                     model->forward(changed, left)[0].slice(0, 4), 1e-5, 1e-6));
  model->loss(tokens, left).backward();
  for (const at::Tensor& parameter : model->parameters())
    CHECK(parameter.grad().isfinite().all().item<bool>());
}

TEST_CASE("the most probable tokens are drawn: among the top k, or always the first at temperature 0") {
  Gpt2 model(kTiny);
  torch::NoGradGuard no_grad;
  auto parameters = model->named_parameters();
  parameters["transformer.ln_f.weight"].zero_();
  parameters["transformer.ln_f.bias"].zero_()[0] = 1.0;
  at::Tensor logits = parameters["transformer.wte.weight"].fill_(-100).select(1, 0);
  for (const int64_t token : {30, 40, 50}) logits[token] = static_cast<double>(token) / 1000;
  const std::vector<int32_t> prompt = {'a'};
  std::map<int32_t, int> counts;
  for (const int32_t token : generate(model, prompt, 256, {.count = 300, .temperature = 1, .top_k = 2}))
    ++counts[token];
  CHECK(counts.size() == 2);
  CHECK(counts[40] > 100);
  CHECK(counts[50] > 100);
  for (const int32_t token : generate(model, prompt, 256, {.count = 20, .temperature = 0}))
    CHECK(token == 50);
  for (const int32_t token : generate(model, prompt, 45, {.count = 20, .temperature = 0})) CHECK(token == 40);
}

TEST_CASE("generation follows the model's probabilities at temperature 0.8") {
  // With ln_f.weight = 0 the logits of every position are wte x ln_f.bias, whatever the earlier tokens are.
  Gpt2 model(kTiny);
  at::NoGradGuard no_grad;
  auto parameters = model->named_parameters();
  parameters["transformer.ln_f.weight"].zero_();
  parameters["transformer.ln_f.bias"].zero_()[0] = 1.0;
  at::Tensor logits = parameters["transformer.wte.weight"].fill_(-100).select(1, 0);
  const std::map<char, double> wanted = {{'a', 1.0}, {'b', 0.0}, {'c', -1.0}};
  double total = 0.0;
  for (const auto& [byte, logit] : wanted) {
    logits[byte] = logit;
    total += std::exp(logit / 0.8);
  }
  constexpr int64_t kCount = 4000;
  const std::vector<int32_t> prompt = {'a'};
  const auto text = generate(model, prompt, 256, {.count = kCount, .seed = 3});
  for (const auto& [byte, logit] : wanted) {
    const double share = static_cast<double>(std::count(text.begin(), text.end(), byte)) / kCount;
    CHECK(share == Approx(std::exp(logit / 0.8) / total).margin(0.04));  // five standard errors
  }
}

}  // namespace
}  // namespace zerorun::testing
