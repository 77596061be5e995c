// Tests that a torch::optim optimizer gives the same bits on shards as on whole tensors.
#include "optim/client_optimizer.h"

#include <catch2/catch.hpp>
#include <functional>

#include "base/error.h"
#include "tests/optim/shards.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using testing::no_update;
using testing::Tensors;
using torch::optim::OptimizerParamGroup;

constexpr int kSteps = 8;

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<OptimizerParamGroup> groups)>;

template <typename Optimizer, typename Options>
Make maker(Options options) {
  return [options](std::vector<OptimizerParamGroup> groups) {
    return std::make_unique<Optimizer>(std::move(groups), options);
  };
}

std::vector<OptimizerParamGroup> groups_of(const Tensors& tensors) {
  std::vector<OptimizerParamGroup> groups;
  for (size_t i = 0; i < tensors.values.size(); ++i) {
    if (static_cast<int>(groups.size()) <= tensors.groups[i]) groups.emplace_back(std::vector<at::Tensor>{});
    groups[tensors.groups[i]].params().push_back(tensors.values[i]);
  }
  return groups;
}

// Tensors of 96 elements. Each slice is then a multiple of 16 elements, so LibTorch processes slices and
// whole tensors with the same vector width.
Tensors two_groups() {
  Tensors tensors;
  for (int group : {0, 1, 0}) tensors.add(16 * 6, group);
  return tensors;
}

std::vector<at::Tensor> train_whole(const Make& make, double divisor) {
  Tensors tensors = two_groups();
  auto optimizer = make(groups_of(tensors));
  for (int step = 0; step < kSteps; ++step) {
    tensors.set_gradients(step);
    for (size_t i = 0; i < tensors.values.size(); ++i) {
      tensors.values[i].mutable_grad() = tensors.gradients[i].clone().div_(divisor);
    }
    optimizer->step();
  }
  return tensors.values;
}

std::vector<at::Tensor> train_shards(const Make& make, double divisor, int slices) {
  Tensors tensors = two_groups();
  // As in a program, the optimizer is constructed over the model's parameters, before they move into buckets.
  auto optimizer = make(groups_of(two_groups()));
  check_client_optimizer(*optimizer);
  auto sharded = make_client_optimizer(*optimizer, tensors.shards(slices), testing::lend());
  for (int step = 0; step < kSteps; ++step) {
    tensors.set_gradients(step);
    sharded->step(testing::facts(divisor), no_update);
  }
  return tensors.values;
}

void check_same_bits(const Make& make) {
  for (double divisor : {1.0, 2.7}) {
    const std::vector<at::Tensor> whole = train_whole(make, divisor);
    const at::Tensor start = two_groups().values[0];
    CHECK_FALSE(at::equal(whole[0], start));
    for (int slices : {1, 2, 3, 6}) {
      const std::vector<at::Tensor> sharded = train_shards(make, divisor, slices);
      for (size_t i = 0; i < whole.size(); ++i) {
        INFO("divisor " << divisor << ", " << slices << " slices, tensor " << i);
        CHECK(at::equal(whole[i], sharded[i]));
      }
    }
  }
}

// All tensors of the optimizer's state. torch::optim has no function that lists them.
std::vector<at::Tensor> tensors_of(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  std::vector<at::Tensor> found;
  for (const auto& [parameter, state] : optimizer.state()) {
    std::vector<at::Tensor> tensors;
    if (auto* adam = dynamic_cast<const AdamParamState*>(state.get())) {
      tensors = {adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()};
    } else if (auto* adamw = dynamic_cast<const AdamWParamState*>(state.get())) {
      tensors = {adamw->exp_avg(), adamw->exp_avg_sq(), adamw->max_exp_avg_sq()};
    } else if (auto* sgd = dynamic_cast<const SGDParamState*>(state.get())) {
      tensors = {sgd->momentum_buffer()};
    } else if (auto* adagrad = dynamic_cast<const AdagradParamState*>(state.get())) {
      tensors = {adagrad->sum()};
    } else if (auto* rmsprop = dynamic_cast<const RMSpropParamState*>(state.get())) {
      tensors = {rmsprop->square_avg(), rmsprop->momentum_buffer(), rmsprop->grad_avg()};
    }
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined()) found.push_back(tensor);
    }
  }
  return found;
}

// Checks that all state of the optimizer is in borrowed memory after the first step. Returns the number of
// borrowed bytes.
int64_t borrowed_bytes(const Make& make) {
  Tensors tensors = two_groups();
  auto optimizer = make(groups_of(two_groups()));
  std::vector<at::Tensor> borrowed;
  auto lend = [&](const Shard& shard, const char* /*name*/) {
    return borrowed.emplace_back(at::zeros({shard.values.numel()}));
  };
  auto sharded = make_client_optimizer(*optimizer, tensors.shards(2), lend);
  tensors.set_gradients(0);
  sharded->step(testing::facts(1), no_update);
  const std::vector<at::Tensor> state = tensors_of(*optimizer);
  CHECK(state.size() == borrowed.size());
  for (const at::Tensor& tensor : state) {
    CHECK(std::ranges::any_of(borrowed, [&](const at::Tensor& lent) { return lent.is_same(tensor); }));
  }
  int64_t bytes = 0;
  for (const at::Tensor& lent : borrowed) bytes += static_cast<int64_t>(lent.nbytes());
  return bytes;
}

}  // namespace

TEST_CASE("client Adam and AdamW on shards equal whole tensors to the bit") {
  check_same_bits(maker<torch::optim::Adam>(torch::optim::AdamOptions(0.01)));
  check_same_bits(maker<torch::optim::Adam>(torch::optim::AdamOptions(0.01).weight_decay(0.1).amsgrad(true)));
  check_same_bits(maker<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01)));
  check_same_bits(maker<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).amsgrad(true)));
}

TEST_CASE("client SGD on shards equals whole tensors to the bit") {
  check_same_bits(maker<torch::optim::SGD>(torch::optim::SGDOptions(0.05)));
  check_same_bits(maker<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9).dampening(0.2)));
  check_same_bits(maker<torch::optim::SGD>(
      torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.1)));
}

TEST_CASE("client Adagrad on shards equals whole tensors to the bit") {
  using torch::optim::AdagradOptions;
  check_same_bits(maker<torch::optim::Adagrad>(AdagradOptions(0.05)));
  check_same_bits(maker<torch::optim::Adagrad>(
      AdagradOptions(0.05).initial_accumulator_value(0.5).lr_decay(0.1).weight_decay(0.1)));
}

TEST_CASE("client RMSprop on shards equals whole tensors to the bit") {
  using torch::optim::RMSpropOptions;
  check_same_bits(maker<torch::optim::RMSprop>(RMSpropOptions(0.01)));
  check_same_bits(
      maker<torch::optim::RMSprop>(RMSpropOptions(0.01).momentum(0.9).centered(true).weight_decay(0.1)));
}

TEST_CASE("client: groups keep their own options") {
  check_same_bits([](std::vector<OptimizerParamGroup> groups) {
    groups[1].set_options(
        std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.5).weight_decay(0)));
    return std::make_unique<torch::optim::AdamW>(std::move(groups), torch::optim::AdamWOptions(0.01));
  });
}

TEST_CASE("client Adagrad: the accumulators start as in LibTorch, also if a group has another value") {
  using torch::optim::AdagradOptions;
  check_same_bits([](std::vector<OptimizerParamGroup> groups) {
    groups[1].set_options(
        std::make_unique<AdagradOptions>(AdagradOptions(0.05).initial_accumulator_value(3)));
    return std::make_unique<torch::optim::Adagrad>(std::move(groups),
                                                   AdagradOptions(0.05).initial_accumulator_value(0.5));
  });
}

TEST_CASE("client: learning rates read and set by group take effect") {
  Tensors tensors = two_groups();
  torch::optim::SGD optimizer(groups_of(two_groups()), torch::optim::SGDOptions(0.5));
  auto sharded = make_client_optimizer(optimizer, tensors.shards(), testing::lend());
  REQUIRE(sharded->groups() == 2);
  CHECK(sharded->lr(0) == 0.5);
  CHECK(sharded->lr(1) == 0.5);
  sharded->set_lr(1, 0);
  CHECK(sharded->lr(0) == 0.5);
  CHECK(sharded->lr(1) == 0);
  tensors.set_gradients(0);
  sharded->step(testing::facts(1), no_update);
  const Tensors start = two_groups();
  CHECK_FALSE(at::equal(tensors.values[0], start.values[0]));
  CHECK(at::equal(tensors.values[1], start.values[1]));
}

TEST_CASE("client: betas read and set by group, of optimizers that have them") {
  using Betas = std::optional<std::pair<double, double>>;
  const auto check_moved = [](auto& optimizer) {
    auto sharded = make_client_optimizer(optimizer, two_groups().shards(), testing::lend());
    CHECK(sharded->betas(1) == Betas({0.9, 0.999}));
    sharded->set_betas(1, {0.5, 0.75});
    CHECK(sharded->betas(0) == Betas({0.9, 0.999}));
    CHECK(sharded->betas(1) == Betas({0.5, 0.75}));
  };
  torch::optim::Adam adam(groups_of(two_groups()), torch::optim::AdamOptions(0.5));
  check_moved(adam);
  CHECK(static_cast<torch::optim::AdamOptions&>(adam.param_groups()[1].options()).betas() ==
        std::tuple(0.5, 0.75));
  torch::optim::AdamW adamw(groups_of(two_groups()), torch::optim::AdamWOptions(0.5));
  check_moved(adamw);
  torch::optim::RMSprop rmsprop(groups_of(two_groups()), torch::optim::RMSpropOptions(0.5));
  CHECK(!make_client_optimizer(rmsprop, two_groups().shards(), testing::lend())->betas(0));
}

TEST_CASE("client: the callback gets each shard once, in order, when the shard is final") {
  Tensors tensors = two_groups();
  torch::optim::Adam optimizer(groups_of(two_groups()), torch::optim::AdamOptions(0.5));
  const std::vector<Shard> shards = tensors.shards(2);
  auto sharded = make_client_optimizer(optimizer, shards, testing::lend());
  tensors.set_gradients(0);
  std::vector<at::Tensor> told;
  sharded->step(testing::facts(1), [&](int index) {
    CHECK(index == static_cast<int>(told.size()));
    told.push_back(shards[index].values.clone());
  });
  REQUIRE(told.size() == shards.size());
  for (size_t i = 0; i < told.size(); ++i) CHECK(at::equal(told[i], shards[i].values));
}

TEST_CASE(
    "client: an optimizer that outlives the shards has its parameters again, and cannot map memory of the "
    "shards") {
  const Tensors given = two_groups();
  torch::optim::Adam optimizer(groups_of(given), torch::optim::AdamOptions(0.5));
  Tensors tensors = two_groups();
  std::vector<Shard> shards = tensors.shards(2);
  c10::weak_intrusive_ptr<c10::TensorImpl> shard(shards[0].values.getIntrusivePtr());
  auto sharded = make_client_optimizer(optimizer, shards, testing::lend());
  tensors.set_gradients(0);
  sharded->step(testing::facts(1), no_update);
  CHECK_FALSE(optimizer.state().empty());
  shards.clear();
  CHECK_FALSE(shard.expired());
  sharded.reset();
  CHECK(shard.expired());
  CHECK(optimizer.state().empty());  // as it was before make_client_optimizer()
  REQUIRE(optimizer.param_groups()[0].params().size() == 2);
  REQUIRE(optimizer.param_groups()[1].params().size() == 1);
  CHECK(optimizer.param_groups()[0].params()[1].is_same(given.values[2]));
  CHECK(optimizer.param_groups()[1].params()[0].is_same(given.values[1]));
  CHECK_NOTHROW(check_client_optimizer(optimizer));
}

TEST_CASE("client: state is in borrowed memory, with as many bytes as the optimizer's formula says") {
  constexpr int64_t kBytes = 3 * 16 * 6 * 4;  // one moment of every parameter
  using namespace torch::optim;
  CHECK(borrowed_bytes(maker<Adam>(AdamOptions(0.01))) == 2 * kBytes);
  CHECK(borrowed_bytes(maker<Adam>(AdamOptions(0.01).amsgrad(true))) == 3 * kBytes);
  CHECK(borrowed_bytes(maker<AdamW>(AdamWOptions(0.01))) == 2 * kBytes);
  CHECK(borrowed_bytes(maker<AdamW>(AdamWOptions(0.01).amsgrad(true))) == 3 * kBytes);
  CHECK(borrowed_bytes(maker<SGD>(SGDOptions(0.01))) == 0);
  CHECK(borrowed_bytes(maker<SGD>(SGDOptions(0.01).momentum(0.9))) == kBytes);
  CHECK(borrowed_bytes(maker<Adagrad>(AdagradOptions(0.01))) == kBytes);
  CHECK(borrowed_bytes(maker<RMSprop>(RMSpropOptions(0.01))) == kBytes);
  CHECK(borrowed_bytes(maker<RMSprop>(RMSpropOptions(0.01).momentum(0.9).centered(true))) == 3 * kBytes);
}

TEST_CASE("client: an optimizer that is given back steps like one that no engine has used") {
  const Tensors given = two_groups();
  const auto make = maker<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.5));
  auto optimizer = make(groups_of(given));
  {
    Tensors tensors = two_groups();
    auto sharded = make_client_optimizer(*optimizer, tensors.shards(), testing::lend());
    tensors.set_gradients(0);
    sharded->step(testing::facts(1), no_update);
  }
  const Tensors plain = two_groups();
  auto other = make(groups_of(plain));
  for (size_t i = 0; i < given.values.size(); ++i) {
    given.values[i].mutable_grad() = at::ones_like(given.values[i]);
    plain.values[i].mutable_grad() = at::ones_like(plain.values[i]);
  }
  optimizer->step();
  other->step();
  for (size_t i = 0; i < given.values.size(); ++i) CHECK(at::equal(given.values[i], plain.values[i]));
}

TEST_CASE("client: an optimizer that needs whole parameters is refused by name") {
  const Tensors tensors = two_groups();
  torch::optim::LBFGS lbfgs(tensors.values, torch::optim::LBFGSOptions(1));
  CHECK_THROWS_AS(check_client_optimizer(lbfgs), UserError);
  CHECK_THROWS_WITH(check_client_optimizer(lbfgs), Contains("torch::optim::LBFGS") && Contains("AdamW"));

  struct OwnAdam : torch::optim::Adam {
    using Adam::Adam;
  };
  OwnAdam own(tensors.values, torch::optim::AdamOptions(1));
  CHECK_THROWS_WITH(check_client_optimizer(own), Contains("OwnAdam"));
}

TEST_CASE("client: an optimizer that has been stepped is refused") {
  const std::vector<Make> makes = {
      maker<torch::optim::Adam>(torch::optim::AdamOptions(0.01)),
      maker<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01)),
      maker<torch::optim::SGD>(torch::optim::SGDOptions(0.01).momentum(0.9)),
      maker<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.01)),
      maker<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01)),
  };
  for (const Make& make : makes) {
    const Tensors tensors = two_groups();
    auto optimizer = make(groups_of(tensors));
    CHECK_NOTHROW(check_client_optimizer(*optimizer));
    for (const at::Tensor& values : tensors.values) values.mutable_grad() = at::ones_like(values);
    optimizer->step();
    CHECK_THROWS_AS(check_client_optimizer(*optimizer), UserError);
    CHECK_THROWS_WITH(check_client_optimizer(*optimizer), Contains("stepped") && Contains("torch::optim::"));
  }
}

}  // namespace zerorun
