// Tests DeferredInit: values that are made later have the same bits as in plain construction, in whatever
// order they are made, and operations that cannot be deferred are refused with a reason.
#include "zero/deferred_init.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <thread>

#include "base/error.h"
#include "tests/zero/deferred_zoo.h"

namespace zerorun {
namespace {

namespace nn = torch::nn;
using ModulePtr = std::shared_ptr<nn::Module>;

struct Named {
  std::string name;
  at::Tensor tensor;
};

std::vector<Named> tensors_of(const nn::Module& module) {
  std::vector<Named> all;
  for (const auto& item : module.named_parameters()) all.push_back({item.key(), item.value()});
  for (const auto& item : module.named_buffers()) all.push_back({item.key(), item.value()});
  return all;
}

std::string generator_state() {
  at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  return {static_cast<const char*>(state.const_data_ptr()), state.nbytes()};
}

// Compares bits, so that NaN equals itself and -0 differs from 0.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.strides() != b.strides() || a.scalar_type() != b.scalar_type())
    return false;
  const at::Tensor left = a.detach().contiguous(), right = b.detach().contiguous();
  return a.numel() == 0 || std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

// Makes the values in the middle of a larger tensor, as initialize() does in a bucket. CHECKs that the
// surrounding elements are unchanged.
at::Tensor made_in_a_bucket(const at::Tensor& deferred) {
  const int64_t room = static_cast<int64_t>(
      at::detail::computeStorageNbytes(deferred.sizes(), deferred.strides(), deferred.element_size()) /
      deferred.element_size());
  const at::Tensor bucket = at::ones({room + 32}, deferred.options().requires_grad(false));
  at::Tensor place = bucket.as_strided(deferred.sizes(), deferred.strides(), 16);
  make_values(deferred, place);
  CHECK(bucket.slice(0, 0, 16).eq(1).all().item<bool>());
  CHECK(bucket.slice(0, room + 16).eq(1).all().item<bool>());
  return place;
}

template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

void check_case(const DeferredCase& item) {
  INFO(item.name);
  torch::manual_seed(4321);
  const ModulePtr plain = item.make();
  const std::string plain_state = generator_state();

  torch::manual_seed(4321);
  ModulePtr built;
  {
    DeferredInit deferred;
    built = item.make();
  }
  CHECK(generator_state() == plain_state);
  torch::rand({3});  // replay must not depend on the generator's current state
  const std::string later_state = generator_state();

  const std::vector<Named> expected = tensors_of(*plain), found = tensors_of(*built);
  REQUIRE(found.size() == expected.size());
  for (size_t index = found.size(); index-- > 0;) {
    const at::Tensor& tensor = found[index].tensor;
    INFO(found[index].name);
    CHECK(found[index].name == expected[index].name);
    CHECK(tensor.requires_grad() == expected[index].tensor.requires_grad());
    if (tensor.dim() == 0) {  // 0-dimensional tensors get their values at once
      CHECK(same_bits(tensor, expected[index].tensor));
      continue;
    }
    REQUIRE(is_deferred(tensor));
    CHECK(same_bits(make_tensor(tensor), expected[index].tensor));
    if (tensor.numel() == 0) continue;
    CHECK_THAT(error_of([&] { tensor.data_ptr(); }), Catch::Contains("zerorun::DeferredInit"));
    if (found[index].name != "expanded") {  // a bucket would not keep these strides
      CHECK(same_bits(made_in_a_bucket(tensor), expected[index].tensor));
    }
    CHECK(is_deferred(tensor));
  }
  CHECK(generator_state() == later_state);
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("not a UserError: ") + error.what();
  }
  return "not refused";
}

}  // namespace

TEST_CASE("Modules of LibTorch and a GPT-2 get the bits of plain construction") {
  for (const DeferredCase& item : deferred_library_modules()) check_case(item);
}

TEST_CASE("Initialisers give the bits of plain construction") {
  for (const DeferredCase& item : deferred_initialisers()) check_case(item);
}

TEST_CASE("Computed, tied, shared and copied tensors get the bits of plain construction") {
  for (const DeferredCase& item : deferred_computed()) check_case(item);
}

TEST_CASE("Initialisation and conversion after the scope are recorded too") {
  auto initialise = [](nn::Module& module) {
    torch::NoGradGuard no_grad;
    for (auto& parameter : module.parameters(/*recurse=*/false)) nn::init::normal_(parameter, 0, 0.02);
  };
  auto build = [] { return nn::Sequential(nn::Linear(9, 8), nn::LayerNorm(nn::LayerNormOptions({8}))); };
  torch::manual_seed(7);
  auto plain = build();
  plain->apply(initialise);
  plain->to(at::kBFloat16);
  torch::manual_seed(7);
  nn::Sequential built{nullptr};
  {
    DeferredInit deferred;
    built = build();
  }
  built->apply(initialise);
  built->to(at::kBFloat16);
  const auto expected = tensors_of(*plain), found = tensors_of(*built);
  for (size_t index = 0; index < found.size(); ++index) {
    INFO(found[index].name);
    REQUIRE(is_deferred(found[index].tensor));
    CHECK(same_bits(make_tensor(found[index].tensor), expected[index].tensor));
  }
}

TEST_CASE("A parameter whose values are made is an ordinary parameter") {
  torch::manual_seed(3);
  nn::Linear plain(4, 3);
  torch::manual_seed(3);
  nn::Linear built{nullptr};
  {
    DeferredInit deferred;
    built = nn::Linear(4, 3);
  }
  for (auto& parameter : built->parameters()) parameter.set_data(make_tensor(parameter));
  const at::Tensor x = torch::ones({2, 4});
  const at::Tensor y = built(x);
  CHECK(same_bits(y, plain(x)));
  y.sum().backward();
  CHECK(built->weight.grad().sum().item<float>() == 24.0f);
  CHECK_FALSE(is_deferred(built->weight));
  CHECK_FALSE(is_deferred(torch::rand({3})));
}

TEST_CASE("Plain tensors stay plain") {
  const at::Tensor outside = torch::rand({4});
  DeferredInit deferred;
  const at::Tensor twice = outside * 2;
  CHECK_FALSE(is_deferred(twice));
  CHECK(twice[0].item<float>() == outside[0].item<float>() * 2);
  CHECK_FALSE(is_deferred(torch::empty({2}, at::kMeta)));
  CHECK(torch::tensor(5).item<int>() == 5);
  CHECK(torch::randperm(9).sum().item<int64_t>() == 36);  // tensors of indices are not deferred
  InterceptionPause pause;
  CHECK(torch::tensor(std::vector<float>{1, 2}).sum().item<float>() == 3);
}

TEST_CASE("Operations that need values that are not made yet are refused") {
  nn::Linear linear{nullptr};
  at::Tensor probabilities;
  const at::Tensor real = torch::full({1}, 3.0f);
  {
    DeferredInit deferred;
    linear = nn::Linear(4, 3);
    probabilities = torch::rand({6});
    CHECK_THAT(refusal([] { torch::zeros({2}, at::Device("cuda")); }), Catch::Contains("cuda"));
    for (const at::Tensor& meta : {probabilities.to(at::kMeta), torch::zeros({6}, at::Device("meta"))}) {
      CHECK(meta.is_meta());
      CHECK_FALSE(is_deferred(meta));
      CHECK((meta + 1).is_meta());
    }
    const at::Tensor table = torch::empty({0}).set_(real.storage());  // as torch makes tensors of storages
    CHECK(table.item<float>() == 3);
    CHECK_THAT(error_of([] {
                 torch::tensor(std::vector<float>{1, 2});
               }),
               Catch::Contains("InterceptionPause"));
  }
  const at::Tensor weight = linear->weight.detach();
  CHECK_THAT(refusal([&] {
               linear(torch::ones({2, 4}));
             }),
             Catch::Contains("Call initialize() before forward"));
  CHECK_THAT(refusal([&] { probabilities.multinomial(2); }), Catch::Contains("aten::multinomial"));
  CHECK_THAT(refusal([&] { probabilities.bernoulli(); }), Catch::Contains("aten::bernoulli"));
  CHECK_THAT(refusal([&] { torch::poisson(probabilities); }), Catch::Contains("aten::poisson"));
  CHECK_THAT(refusal([&] { torch::ones({6}).copy_(probabilities); }), Catch::Contains("aten::copy_"));
  CHECK_THAT(refusal([&] { probabilities.nonzero(); }),
             Catch::Contains("aten::nonzero") && Catch::Contains("outside the DeferredInit scope"));
  CHECK_THAT(refusal([&] { probabilities.resize_({60}); }), Catch::Contains("larger storage"));
  std::ostringstream stream;
  CHECK_THAT(error_of([&] { torch::save(linear, stream); }), Catch::Contains("zerorun::DeferredInit"));
  CHECK_THAT(error_of([&] { stream << weight; }), Catch::Contains("zerorun::DeferredInit"));

  at::Tensor place = torch::empty({6});
  at::Tensor twice = probabilities * 2;
  make_values(twice, place);  // works although the calls above were refused
  CHECK((place.ge(0) & place.lt(2)).all().item<bool>());

  DeferredInit other;
  at::Tensor of_other = torch::ones({6});
  of_other.add_(probabilities);  // reads the values of another scope
  CHECK(same_bits(make_tensor(of_other), make_tensor(probabilities) + 1));
  at::_foreach_add_({of_other, probabilities}, 1);  // adds to each tensor in the scope of that tensor
  CHECK(same_bits(make_tensor(of_other), make_tensor(probabilities) + 1));
  CHECK_THAT(refusal([&] {
               at::aminmax_out(of_other, probabilities, torch::ones({6, 2}), 1);
             }),
             Catch::Contains("tensors of another scope"));
}

TEST_CASE("Values that the host asks for while a model is built are computed") {
  // As torch.nn.init.trunc_normal_ of Python: what is drawn depends on what was drawn before.
  const auto build = [](std::vector<double>& told) {
    torch::NoGradGuard no_grad;
    at::Tensor values = torch::empty({40}).normal_();
    for (;;) {
      const at::Tensor outside = values.abs().gt(0.5);
      told.push_back(values.sum().item<double>());
      if (!outside.any().item<bool>()) break;
      values = torch::where(outside, torch::empty_like(values).normal_(), values);
    }
    told.push_back(values.equal(values.clone()));
    return values;
  };
  std::vector<double> expected, told;
  torch::manual_seed(8);
  const at::Tensor plain = build(expected);
  const at::Tensor drawn_after = torch::rand({3});
  torch::manual_seed(8);
  at::Tensor built;
  {
    DeferredInit deferred;
    built = build(told);
  }
  CHECK(is_deferred(built));
  CHECK(told == expected);
  CHECK(told.size() > 4);  // it was drawn several times
  CHECK(same_bits(torch::rand({3}), drawn_after));
  CHECK(built.sum().item<double>() == plain.sum().item<double>());
  CHECK_NOTHROW(at::_assert_async(built.lt(9).all()));
  CHECK_THROWS(at::_assert_async(built.gt(9).all()));
  CHECK(same_bits(make_tensor(built), plain));
}

TEST_CASE("A mistake in the model gives LibTorch's error, which ends the scope") {
  CHECK_THAT(error_of([] {
               DeferredInit deferred;
               torch::zeros({3}).copy_(torch::ones({4}));
             }),
             Catch::Contains("size"));
  CHECK_FALSE(is_deferred(torch::zeros({3})));
}

TEST_CASE("If a tensor was written after a recorded operator read it, the error names the operator") {
  at::Tensor table = torch::rand({5});
  at::Tensor w, kept;
  {
    DeferredInit deferred;
    w = torch::empty({5}).copy_(table);
    kept = torch::empty({5}).copy_(torch::ones({5}));
  }
  CHECK(same_bits(make_tensor(w), table));
  table.add_(1);
  CHECK_THAT(refusal([&] { make_tensor(w); }),
             Catch::Contains("aten::copy_") && Catch::Contains("written to since"));
  CHECK(make_tensor(kept).sum().item<float>() == 5);
}

TEST_CASE("Rank threads make values at the same time, from one default generator") {
  auto build = [] { return nn::Linear(64, 64); };
  torch::manual_seed(2);
  const nn::Linear plain = build();
  std::vector<nn::Linear> built;
  for (int rank = 0; rank < 3; ++rank) {
    torch::manual_seed(2);
    DeferredInit deferred;
    built.push_back(build());
  }
  std::vector<std::vector<at::Tensor>> made(built.size());
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < built.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      for (int round = 0; round < 20; ++round) made[rank].push_back(make_tensor(built[rank]->weight));
    });
  }
  for (auto& rank : ranks) rank.join();
  for (const auto& weights : made) {
    for (const at::Tensor& weight : weights) CHECK(same_bits(weight, plain->weight));
  }
}

TEST_CASE("A trial forward within the scope gives the right sizes") {
  DeferredInit deferred;
  nn::Linear linear(4, 3);
  CHECK(torch::relu(linear(torch::zeros({2, 4}))).sizes() == at::IntArrayRef({2, 3}));
  nn::Conv2d convolution(nn::Conv2dOptions(3, 5, 3));
  CHECK(convolution(torch::rand({1, 3, 9, 9})).flatten(1).size(1) == 5 * 7 * 7);
}

}  // namespace zerorun
