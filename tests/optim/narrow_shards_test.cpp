// Tests shards of 16-bit training: gradients in bf16, fp16 or fp32, float32 master weights, and 16-bit
// parameters that the update writes in the same pass. The expected values are computed in float64.
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "optim/client_optimizer.h"
#include "tests/optim/shards.h"

namespace zerorun {
namespace {

using testing::adam;
using testing::sgd;

constexpr int kSteps = 6;
#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer does not see the synchronisation of LibTorch's OpenMP threads and would report races.
constexpr int kThreadCounts[] = {1};
#else
constexpr int kThreadCounts[] = {1, 2, 3};
#endif
constexpr int64_t kSizes[] = {1, 3, 16, 1000, 1024, 1025, 4099};

struct Precision {
  at::ScalarType gradient;
  at::ScalarType rounded;
};
constexpr Precision kPrecisions[] = {{at::kBFloat16, at::kBFloat16},
                                     {at::kHalf, at::kHalf},
                                     {at::kFloat, at::kBFloat16},
                                     {at::kFloat, at::kHalf}};

// Shards as the engine makes them for 16-bit training, with a gradient for each step.
struct Training {
  std::vector<at::Tensor> master;
  std::vector<Shard> shards;

  Training(Precision precision, int groups, at::ArrayRef<int64_t> sizes = kSizes) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      master.push_back(testing::uniform(sizes[i], i));
      shards.push_back({.values = master.back(),
                        .gradient = at::zeros({sizes[i]}, precision.gradient),
                        .rounded = at::zeros({sizes[i]}, precision.rounded),
                        .group = static_cast<int>(i) % groups});
    }
  }

  at::Tensor gradient(size_t index, int step) const {
    const Shard& shard = shards[index];
    return testing::gradient_of(static_cast<int64_t>(index), step, shard.values.numel())
        .to(shard.gradient.scalar_type());
  }

  void run(ShardOptimizer& optimizer, double divisor, bool keeps_gradients) {
    for (int step = 0; step < kSteps; ++step) {
      for (size_t i = 0; i < shards.size(); ++i) shards[i].gradient.copy_(gradient(i, step));
      size_t told = 0;
      optimizer.step(testing::facts(divisor), [&](int index) {
        CHECK(index == static_cast<int>(told++));
        // The callback comes after the update: the 16-bit parameter must be the rounded master weight.
        const Shard& shard = shards[index];
        CHECK(at::equal(shard.rounded, shard.values.to(shard.rounded.scalar_type())));
      });
      CHECK(told == shards.size());
      for (size_t i = 0; keeps_gradients && i < shards.size(); ++i) {
        CHECK(at::equal(shards[i].gradient, gradient(i, step)));
      }
    }
  }
};

// Adam or AdamW on a whole tensor in float64.
at::Tensor by_formula(const AdamConfig& c, const Training& training, size_t index, double divisor) {
  at::Tensor w = testing::uniform(training.master[index].numel(), index).to(at::kDouble);
  at::Tensor m = at::zeros_like(w);
  at::Tensor v = at::zeros_like(w);
  for (int t = 1; t <= kSteps; ++t) {
    at::Tensor g = training.gradient(index, t - 1).to(at::kDouble) / divisor;
    if (!c.decoupled) g = g + w * c.weight_decay;
    if (c.decoupled) w = w - w * (c.lr * c.weight_decay);
    m = m * c.beta1 + g * (1 - c.beta1);
    v = v * c.beta2 + g * g * (1 - c.beta2);
    const double first = c.bias_correction ? 1 - std::pow(c.beta1, t) : 1;
    const double second = c.bias_correction ? 1 - std::pow(c.beta2, t) : 1;
    w = w - (m / first) / ((v / second).sqrt() + c.eps) * c.lr;
  }
  return w;
}

// SGD as torch.optim.SGD documents it, in float64.
at::Tensor by_formula(const SgdConfig& c, const Training& training, size_t index, double divisor) {
  at::Tensor w = testing::uniform(training.master[index].numel(), index).to(at::kDouble);
  at::Tensor buffer;
  for (int t = 1; t <= kSteps; ++t) {
    at::Tensor g = training.gradient(index, t - 1).to(at::kDouble) / divisor + w * c.weight_decay;
    if (c.momentum != 0) {
      buffer = t == 1 ? g : buffer * c.momentum + g * (1 - c.dampening);
      g = c.nesterov ? g + buffer * c.momentum : buffer;
    }
    w = w - g * c.lr;
  }
  return w;
}

void check_formulas(const std::vector<OptimizerConfig>& groups) {
  for (const Precision& precision : kPrecisions) {
    for (double divisor : {1.0, 4096.0, 2.7}) {
      Training training(precision, static_cast<int>(groups.size()));
      auto optimizer = make_fused_optimizer(groups, training.shards, testing::lend());
      training.run(*optimizer, divisor, true);
      for (size_t i = 0; i < training.shards.size(); ++i) {
        const OptimizerConfig& config = groups[training.shards[i].group];
        const auto* sgd = std::get_if<SgdConfig>(&config);
        const at::Tensor wanted = sgd ? by_formula(*sgd, training, i, divisor)
                                      : by_formula(std::get<AdamConfig>(config), training, i, divisor);
        const at::Tensor got = training.master[i].to(at::kDouble);
        // Tolerance: a few float32 roundings of values of order 1 in each of six steps.
        INFO(precision.gradient << " gradients, divisor " << divisor << ", tensor " << i);
        CHECK((got - wanted).abs().max().item<double>() < 1e-6);
        CHECK((got - testing::uniform(got.numel(), i)).abs().max().item<double>() > 1e-5);
      }
    }
  }
}

using Make = std::unique_ptr<torch::optim::Optimizer> (*)(std::vector<at::Tensor>);

// Checks that a torch::optim optimizer gives 16-bit shards the same master weights as float32 tensors with
// the same gradients.
void check_client(Make make) {
  for (const Precision& precision : kPrecisions) {
    for (double divisor : {1.0, 2.7}) {
      Training training(precision, 1);
      auto optimizer = make({at::zeros({1})});
      training.run(*make_client_optimizer(*optimizer, training.shards, testing::lend()), divisor, false);

      Training wide(precision, 1);
      auto plain = make(wide.master);
      for (int step = 0; step < kSteps; ++step) {
        for (size_t i = 0; i < wide.master.size(); ++i) {
          wide.master[i].mutable_grad() = wide.gradient(i, step).to(at::kFloat, false, true).div_(divisor);
        }
        plain->step();
      }
      for (size_t i = 0; i < wide.master.size(); ++i) {
        INFO(precision.gradient << " gradients, divisor " << divisor << ", tensor " << i);
        CHECK(at::equal(training.master[i], wide.master[i]));
        CHECK_FALSE(at::equal(training.master[i], testing::uniform(wide.master[i].numel(), i)));
      }
    }
  }
}

}  // namespace

TEST_CASE("16-bit shards: AdamW and Adam follow the formulas, with and without bias correction") {
  for (const bool decoupled : {true, false}) {
    AdamConfig uncorrected = adam(decoupled);
    uncorrected.bias_correction = false;
    AdamConfig undecayed = adam(decoupled);
    undecayed.weight_decay = 0;
    undecayed.lr = 0.003;
    check_formulas({adam(decoupled), uncorrected, undecayed});
  }
}

TEST_CASE("16-bit shards: SGD follows the formulas; groups keep their own settings") {
  SgdConfig dampened = sgd(0.9);
  dampened.dampening = 0.3;
  SgdConfig nesterov = sgd(0.9);
  nesterov.nesterov = true;
  check_formulas({sgd(0), dampened, nesterov});
  check_formulas({sgd(0.9), adam()});
}

TEST_CASE("16-bit shards: the number of threads changes no bit") {
  const int threads_before = at::get_num_threads();
  constexpr int64_t kLarge[] = {70'001, 400'003};  // split among threads in unequal blocks
  for (const OptimizerConfig& config : {OptimizerConfig(adam()), OptimizerConfig(sgd(0.9))}) {
    std::vector<Training> runs;
    for (int threads : kThreadCounts) {
      at::set_num_threads(threads);
      Training training({at::kBFloat16, at::kBFloat16}, 1, kLarge);
      auto optimizer = make_fused_optimizer({config}, training.shards, testing::lend());
      training.run(*optimizer, 2.7, true);
      runs.push_back(training);
    }
    for (const Training& run : runs) {
      for (size_t i = 0; i < run.master.size(); ++i) {
        CHECK(at::equal(run.master[i], runs[0].master[i]));
        CHECK(at::equal(run.shards[i].rounded, runs[0].shards[i].rounded));
      }
    }
  }
  at::set_num_threads(threads_before);
}

TEST_CASE("16-bit shards: values beyond fp16 become infinite in the parameter, not in the master weight") {
  at::Tensor master = at::full({9}, 65519.0F);
  at::Tensor rounded = at::zeros({9}, at::kHalf);
  SgdConfig config = sgd(0);
  config.weight_decay = 0;
  config.lr = 1;
  auto optimizer = make_fused_optimizer(
      {config},
      {{.values = master, .gradient = at::full({9}, -1, at::kHalf), .rounded = rounded, .group = 0}},
      testing::lend());
  optimizer->step(testing::facts(1), testing::no_update);
  CHECK(at::equal(master, at::full({9}, 65520.0F)));
  CHECK(at::isinf(rounded).all().item<bool>());
}

TEST_CASE("16-bit shards: a torch::optim optimizer gets float32 gradients, and its result is rounded") {
  check_client([](std::vector<at::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(0.01));
  });
  check_client([](std::vector<at::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true));
  });
  check_client([](std::vector<at::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::Adagrad>(std::move(parameters), torch::optim::AdagradOptions(0.05));
  });
}

}  // namespace zerorun
