// Tests Lamb and Muon, whose updates need whole parameters, on ranks that own slices. The expected values are
// computed from the formulas in float64 in one process. All stages must give the same bits.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

constexpr int kSteps = 5;
constexpr double kClipping = 0.5;
constexpr double kDecay = 0.1;

// A model with wide, tall and square matrices, a convolution's weight, and biases.
struct ShapesImpl : torch::nn::Module {
  ShapesImpl() {
    convolution = register_module("convolution", torch::nn::Conv2d(2, 5, 2));
    wide = register_module("wide", torch::nn::Linear(20, 9));
    square = register_module("square", torch::nn::Linear(9, 9));
    tall = register_module("tall", torch::nn::Linear(9, 26));
    embedding = register_module("embedding", torch::nn::Linear(26, 4));
    fill(*this, 40);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = torch::tanh(convolution(x)).flatten(1);
    return embedding(torch::tanh(tall(torch::tanh(square(torch::tanh(wide(y)))))));
  }
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::Linear wide{nullptr}, square{nullptr}, tall{nullptr}, embedding{nullptr};
};
TORCH_MODULE(Shapes);

at::Tensor loss_of(Shapes& model, int step, int rank) {
  return model(values({3, 2, 3, 3}, 1000 + 10 * step + rank)).square().mean();
}

using Weights = std::map<std::string, at::Tensor>;  // float64 values by parameter name

// The gradients of a step, averaged over ranks, in float64.
Weights gradients(Shapes& model, const Weights& weights, int step, int ranks) {
  {
    torch::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) item.value().copy_(weights.at(item.key()));
  }
  model->zero_grad();
  for (int rank = 0; rank < ranks; ++rank) (loss_of(model, step, rank) / ranks).backward();
  Weights result;
  for (auto& item : model->named_parameters()) result[item.key()] = item.value().grad().to(torch::kDouble);
  return result;
}

void clip(Weights& gradients) {
  double squares = 0;
  for (const auto& [name, gradient] : gradients) squares += gradient.square().sum().item<double>();
  const double divisor = std::max(1.0, (std::sqrt(squares) + 1e-6) / kClipping);
  for (auto& [name, gradient] : gradients) gradient = gradient / divisor;
}

struct Moments {
  at::Tensor first, second;
  void add(const at::Tensor& gradient, double beta1, double beta2) {
    if (!first.defined()) first = second = torch::zeros_like(gradient);
    first = beta1 * first + (1 - beta1) * gradient;
    second = beta2 * second + (1 - beta2) * gradient.square();
  }
};

using Update = std::function<void(Weights& weights, Weights gradients, int step)>;

Weights train_plain(int ranks, const Update& update) {
  Shapes model;
  Weights weights;
  for (auto& item : model->named_parameters()) weights[item.key()] = item.value().detach().to(torch::kDouble);
  for (int step = 0; step < kSteps; ++step) update(weights, gradients(model, weights, step, ranks), step);
  return weights;
}

// Trains kSteps steps with the engine. Before step `overflow_before` it takes an extra step with infinite
// gradients.
Weights train_engine(const std::string& optimizer, int stage, int ranks, const std::string& more = "",
                     int overflow_before = -1, const std::map<std::string, int64_t>& heads = {}) {
  const std::string config = R"({"train_micro_batch_size_per_gpu": 3, "gradient_clipping": )" +
                             std::to_string(kClipping) + R"(, "optimizer": )" + optimizer + more +
                             R"(, "zero_optimization": {"stage": )" + std::to_string(stage) +
                             R"(, "stage3_param_persistence_threshold": 10}})";
  Weights result;
  run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
    Shapes model;
    InitializeOptions options;
    options.bucket_numel = 250;
    options.attention_heads = heads;
    Engine engine = make_engine(*model, config, communicator, options);
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor batch = values({3, 2, 3, 3}, 1000 + 10 * step + communicator->rank());
      auto loss = [&] { return model(batch.to(engine.dtype())).to(torch::kFloat).square().mean(); };
      if (step == overflow_before) {
        engine.backward(loss() * INFINITY);
        engine.step();
      }
      engine.backward(loss());
      engine.step();
    }
    engine.synchronize();
    for (auto& item : model->named_parameters()) {
      const at::Tensor value = item.value().detach().to(torch::kDouble);
      if (communicator->rank() == 0) result[item.key()] = value;
    }
  });
  return result;
}

// CHECKs that values differ by at most 1e-6 x max(1, m), where m is the largest magnitude in the parameter.
void check_close(const Weights& found, const Weights& expected) {
  REQUIRE(found.size() == expected.size());
  for (const auto& [name, value] : expected) {
    INFO(name);
    const double largest = value.abs().max().item<double>();
    CHECK((found.at(name) - value).abs().max().item<double>() <= 1e-6 * std::max(1.0, largest));
  }
}

void check_equal(const Weights& a, const Weights& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, value] : a) {
    INFO(name);
    CHECK(torch::equal(value, b.at(name)));
  }
}

const std::string kLamb =
    R"({"type": "Lamb", "params": {"lr": 0.02, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1,
        "max_coeff": 0.9, "min_coeff": 0.2}})";

// You et al. 2020, algorithm 2, with the bounds and the bias correction of DeepSpeed's documentation and
// kernel.
Update lamb() {
  auto moments = std::make_shared<std::map<std::string, Moments>>();
  return [moments](Weights& weights, Weights gradients, int step) {
    clip(gradients);
    const double rate = 0.02 * std::sqrt(1 - std::pow(0.95, step + 1)) / (1 - std::pow(0.8, step + 1));
    for (auto& [name, weight] : weights) {
      Moments& own = (*moments)[name];
      own.add(gradients.at(name), 0.8, 0.95);
      const at::Tensor direction = own.first / (own.second.sqrt() + 1e-6) + kDecay * weight;
      const double ratio = weight.norm().item<double>() / direction.norm().item<double>();
      weight = weight - rate * std::min(std::max(ratio, 0.2), 0.9) * direction;
    }
  };
}

std::string muon(const std::string& method, const std::string& more = "") {
  return R"({"type": "Muon", "params": {"muon_lr": 0.02, "adam_lr": 0.003, "betas": [0.8, 0.95], "eps": 1e-8,
          "momentum": 0.9, "weight_decay": 0.1, "ns_method": ")" +
         method + "\"" + more + "}}";
}

// The result of Muon's Newton-Schulz iteration. The iteration applies its polynomial to each singular value
// of the matrix, so this function computes it on the singular values.
at::Tensor orthogonal(const at::Tensor& matrix) {
  const auto [u, singular, v] = at::linalg_svd(matrix, /*full_matrices=*/false);
  at::Tensor s = singular / (matrix.norm() + 1e-7);
  for (int step = 0; step < 5; ++step) s = 3.4445 * s - 4.7750 * s.pow(3) + 2.0315 * s.pow(5);
  return at::matmul(u * s, v);
}

// `heads`: the numbers of heads that are orthogonalized one by one, by name.
Update muon_update(const std::map<std::string, int64_t>& heads = {}) {
  auto momenta = std::make_shared<std::map<std::string, at::Tensor>>();
  auto moments = std::make_shared<std::map<std::string, Moments>>();
  return [=](Weights& weights, Weights gradients, int step) {
    auto is_matrix = [](const std::string& name) {
      return name.ends_with("weight") && !name.starts_with("embedding");
    };
    for (auto& [name, gradient] : gradients) {
      if (!is_matrix(name)) continue;
      at::Tensor& momentum = (*momenta)[name];
      if (!momentum.defined()) momentum = torch::zeros_like(gradient);
      momentum = 0.9 * momentum + 0.1 * gradient;
      const at::Tensor looked_ahead = 0.1 * gradient + 0.9 * momentum;
      const int64_t count = heads.contains(name) ? heads.at(name) : 1;
      const double rows = static_cast<double>(gradient.size(-2)) / static_cast<double>(count);
      const double columns = static_cast<double>(gradient.size(-1));
      std::vector<at::Tensor> parts;
      for (const at::Tensor& head : looked_ahead.flatten(1).chunk(count)) parts.push_back(orthogonal(head));
      gradient = at::cat(parts).view(gradient.sizes()) * std::sqrt(std::max(1.0, rows / columns));
    }
    clip(gradients);
    const double correction1 = 1 - std::pow(0.8, step + 1);
    const double correction2 = 1 - std::pow(0.95, step + 1);
    for (auto& [name, weight] : weights) {
      const double rate = is_matrix(name) ? 0.02 : 0.003;
      at::Tensor direction = gradients.at(name);
      if (!is_matrix(name)) {
        Moments& own = (*moments)[name];
        own.add(direction, 0.8, 0.95);
        direction = own.first / correction1 / ((own.second / correction2).sqrt() + 1e-8);
      }
      weight = weight * (1 - rate * kDecay) - rate * direction;
    }
  };
}

}  // namespace

TEST_CASE("Lamb on slices is Lamb on whole parameters") {
  const int ranks = GENERATE(1, 2, 3);
  CAPTURE(ranks);
  const Weights expected = train_plain(ranks, lamb());
  for (int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    check_close(train_engine(kLamb, stage, ranks), expected);
  }
}

TEST_CASE("Muon on slices is Muon on whole matrices, and AdamW elsewhere") {
  const int ranks = GENERATE(1, 2, 3);
  const std::string method = GENERATE("gram", "standard");
  CAPTURE(ranks, method);
  const Weights expected = train_plain(ranks, muon_update());
  for (int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    check_close(train_engine(muon(method), stage, ranks), expected);
  }
}

TEST_CASE("per_head_muon orthogonalizes the heads of matrices one by one") {
  const std::map<std::string, int64_t> heads = {{"wide.weight", 3}, {"square.weight", 9}, {"tall.weight", 2}};
  const std::string method = GENERATE("gram", "standard");
  CAPTURE(method);
  const std::string per_head = muon(method, R"(, "per_head_muon": true)");
  for (const int ranks : {1, 3}) {
    const Weights expected = train_plain(ranks, muon_update(heads));
    for (int stage : {0, 1, 2, 3}) {
      CAPTURE(ranks, stage);
      check_close(train_engine(per_head, stage, ranks, "", -1, heads), expected);
    }
  }
  check_equal(train_engine(muon(method), 3, 2, "", -1, heads), train_engine(muon(method), 3, 2));
}

TEST_CASE("Heads that do not fit the model are refused by name") {
  const std::string per_head = muon("gram", R"(, "per_head_muon": true)");
  auto errors = [&](const std::map<std::string, int64_t>& heads) {
    return [&, heads] { train_engine(per_head, 1, 2, "", -1, heads); };
  };
  CHECK_THROWS_WITH(errors({})(), Catch::Contains("no matrix of the model has attention heads"));
  CHECK_THROWS_WITH(errors({{"wide", 3}})(), Catch::Contains("\"wide\" is no parameter of the model"));
  CHECK_THROWS_WITH(errors({{"wide.bias", 3}})(),
                    Catch::Contains("\"wide.bias\" is no matrix that Muon updates"));
  CHECK_THROWS_WITH(errors({{"embedding.weight", 2}})(), Catch::Contains("is no matrix that Muon updates"));
  CHECK_THROWS_WITH(errors({{"wide.weight", 2}})(),
                    Catch::Contains("\"wide.weight\" has 9 rows, which do not divide into 2 heads"));
}

TEST_CASE("Lamb and Muon give the same bits at all stages") {
  const int ranks = GENERATE(2, 3);
  const std::string optimizer = GENERATE(as<std::string>(), kLamb, muon("gram"), muon("standard"));
  const std::string precision = GENERATE(as<std::string>(), "", R"(, "bf16": {"enabled": true})",
                                         R"(, "fp16": {"enabled": true, "initial_scale_power": 8})");
  CAPTURE(ranks, optimizer, precision);
  const Weights reference = train_engine(optimizer, 0, ranks, precision);
  for (int stage : {1, 2, 3}) {
    CAPTURE(stage);
    check_equal(train_engine(optimizer, stage, ranks, precision), reference);
  }
}

TEST_CASE("A step that overflows leaves Muon's momentum and Lamb's moments as they were") {
  const std::string optimizer = GENERATE(as<std::string>(), kLamb, muon("gram"));
  const int stage = GENERATE(0, 2, 3);
  CAPTURE(optimizer, stage);
  const std::string precision = R"(, "fp16": {"enabled": true, "loss_scale": 128})";
  check_equal(train_engine(optimizer, stage, 2, precision, 2), train_engine(optimizer, stage, 2, precision));
}

TEST_CASE("Muon splits a parameter group into two: its matrices, and the rest") {
  auto lrs = [](const std::string& optimizer, const std::string& more) {
    Shapes model;
    std::vector<double> result;
    run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
      const std::string config =
          R"({"train_micro_batch_size_per_gpu": 3, "optimizer": )" + optimizer + more + "}";
      result = make_engine(*model, config, communicator).get_lr();
    });
    return result;
  };
  auto of = [](const std::string& params) { return R"({"type": "Muon", "params": {)" + params + "}}"; };
  CHECK(lrs(muon("gram"), "") == std::vector{0.02, 0.003});
  CHECK(lrs(of(R"("lr": 0.01)"), "") == std::vector{0.01, 0.01});
  CHECK(lrs(of(R"("lr": 0.01, "adam_lr": 0.005)"), "") == std::vector{0.01, 0.005});
  CHECK(lrs(of(""), "") == std::vector{0.02, 3e-4});
  const std::string range_test =
      R"(, "scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": )";
  CHECK(lrs(muon("gram"), range_test + "[0.5, 0.25]}}") == std::vector{0.5, 0.25});
  CHECK_THROWS_WITH(lrs(muon("gram"), range_test + "[0.5]}}"), Catch::Contains("a list of 2"));
}

}  // namespace zerorun::testing
