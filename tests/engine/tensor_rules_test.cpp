// Tests what operators on split parameters mean, and which plans and modules are refused.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "engine/gathered_parameters.h"
#include "engine/parameter_states.h"
#include "engine/tensor_parallel.h"
#include "tensor_parallel/cross_entropy.h"
#include "tests/engine/tensor_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

using Catch::Contains;
namespace F = torch::nn::functional;

// A layer without a bias, a bias, and an embedding.
struct PartsImpl : torch::nn::Module {
  PartsImpl() {
    weight = register_parameter("weight", values({6, 4}, 1));
    bias = register_parameter("bias", values({6}, 2));
    turned = register_parameter("turned", values({4, 6}, 3));
    rows = register_parameter("rows", values({10, 4}, 4));
    register_module("inner", torch::nn::Linear(4, 8));
  }
  at::Tensor weight, bias, turned, rows;
};
TORCH_MODULE(Parts);

const TensorPlan kPartsPlan = {{"weight", TensorStyle::colwise},
                               {"bias", TensorStyle::colwise},
                               {"turned", TensorStyle::colwise_gather_output, {.transposed = true}},
                               {"rows", TensorStyle::embedding_rowwise}};

// Runs `use` on two tensor ranks, and returns what it throws on the first one.
std::string error_of(const std::function<void(Parts&, Engine&)>& use) {
  std::string error = "nothing thrown";
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    const bool is_first = communicator->rank() == 0;
    Parts model;
    Engine engine =
        decoder_engine(*model, decoder_config(1, kSgd), kTwoTensorRanks, std::move(communicator), kPartsPlan);
    try {
      use(model, engine);
    } catch (const std::exception& thrown) {
      if (is_first) error = thrown.what();
    }
  });
  return error;
}

}  // namespace

TEST_CASE("Operators without a meaning for parts are refused by name") {
  const at::Tensor x = values({3, 4}, 5);
  struct Row {
    std::function<void(Parts&, Engine&)> use;
    std::string part;
  };
  const Row rows[] = {
      {[](Parts& m, Engine&) { m->weight.norm(); }, "on parameter weight, which is split among tensor ranks"},
      {[](Parts& m, Engine&) { m->weight.sum(); }, "operator aten::sum on parameter weight"},
      {[](Parts& m, Engine&) { m->weight * m->weight; }, "operator aten::mul on parameter weight"},
      {[](Parts& m, Engine&) { at::softmax(m->weight, 0); }, "on parameter weight"},
      {[](Parts& m, Engine&) {
         at::cat({m->weight, m->weight});
       },
       "operator aten::cat on parameter weight"},
      {[&](Parts& m, Engine&) { F::linear(x, m->weight, at::zeros(6)); }, "bias that is not split"},
      {[&](Parts& m, Engine&) {
         F::linear(x, at::ones({6, 4}), m->bias);
       },
       "parameter bias"},
      {[&](Parts& m, Engine&) { at::matmul(m->weight, m->turned); }, "another split parameter"},
      {[&](Parts& m, Engine&) { x.sum(0) + m->bias; }, "adds 3 elements to a tensor of sizes [4]"},
      {[&](Parts& m, Engine&) { m->bias.uniform_(); }, "parameter bias"},
      {[&](Parts& m, Engine&) { m->weight.mul_(2); }, "NoGradGuard"},
      {[&](Parts& m, Engine&) { at::embedding(m->turned, at::zeros({2}, at::kLong)); }, "along its width"},
      {[&](Parts& m, Engine&) { at::matmul(x, m->weight.narrow(0, 0, 2).t()); },
       "cuts the dimension that is split"},
      {[&](Parts& m, Engine&) { at::matmul(x, m->weight.slice(0, 0, 5).t()); }, "cuts the dimension"},
      {[&](Parts& m, Engine&) { at::embedding(m->rows, at::zeros({2}, at::kLong), -1, true); },
       "counts indices (scale_grad_by_freq)"},
      {[&](Parts& m, Engine&) {
         at::NoGradGuard no_grad;
         at::Tensor out = at::zeros({3, 3});
         at::mm_out(out, x, m->weight.t());
       },
       "operator aten::mm on parameter weight"},
      {[](Parts& m, Engine&) { m->weight.const_data_ptr(); }, "open a GatheredParameters scope"},
  };
  for (const auto& [use, part] : rows) {
    CAPTURE(part);
    CHECK_THAT(error_of(use), Contains(part));
  }
}

TEST_CASE(
    "An index outside of the vocabulary is an error of the rank that has its end, and the others end with "
    "it") {
  for (const int64_t index : {-1, 10}) {
    std::string error;
    try {
      run_ranks(
          2,
          [&](std::shared_ptr<Communicator> communicator) {
            Parts model;
            Engine engine = decoder_engine(*model, decoder_config(1, kSgd), kTwoTensorRanks,
                                           std::move(communicator), kPartsPlan);
            at::embedding(model->rows, at::full({2}, index, at::kLong));
          },
          std::chrono::milliseconds(300));
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    CHECK_THAT(error, Contains("index out of range"));
  }
}

TEST_CASE("Products with parts, in the forms in which programs write them, have the whole results") {
  Parts whole;
  const at::Tensor x = values({2, 3, 4}, 5), y = values({2, 3, 6}, 6), row = values({4}, 7);
  const at::Tensor tokens = at::tensor({0, 9, 4, 5, 5}, at::kLong);
  using Use = std::function<at::Tensor(Parts&)>;
  const Use uses[] = {
      [&](Parts& m) { return F::linear(x, m->weight, m->bias); },
      [&](Parts& m) { return at::linear(x, m->weight) + m->bias; },
      [&](Parts& m) { return at::add(m->bias, at::matmul(x, m->weight.t())); },
      [&](Parts& m) { return at::addmm(m->bias, x[0], m->weight.t()); },
      [&](Parts& m) { return at::matmul(m->weight, x.transpose(1, 2)).transpose(1, 2); },
      [&](Parts& m) { return at::mv(m->weight, row); },
      [&](Parts& m) {
        return at::einsum("bti,oi->bto", {x, m->weight});
      },
      [&](Parts& m) { return at::linear(x, m->weight.clone()); },
      [&](Parts& m) { return at::linear(x.to(at::kDouble), m->weight.to(at::kDouble)).to(at::kFloat); },
  };
  const Use gathered[] = {
      [&](Parts& m) {  // in place on a gathered result
        return at::matmul(x, m->turned).mul_(2);
      },
      [&](Parts& m) { return at::matmul(x, m->turned); },
      [&](Parts& m) { return at::matmul(m->turned.t(), x.transpose(1, 2)).transpose(1, 2); },
      [&](Parts& m) { return at::embedding(m->rows, tokens); },
      [&](Parts& m) { return at::embedding(m->rows, tokens, 5); },
      [&](Parts& m) { return at::linear(x, m->rows); },
  };
  auto gradients_of = [](const at::Tensor& loss, Parts& model) {
    return torch::autograd::grad({loss}, model->parameters(), {}, {}, false, /*allow_unused=*/true);
  };
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Parts model;
    Engine engine =
        decoder_engine(*model, decoder_config(0, kSgd), kTwoTensorRanks, std::move(communicator), kPartsPlan);
    Parts own_whole;
    auto compare = [&](const Use& use, bool is_split, const std::string& name) {
      const at::Tensor expected = use(own_whole), found = use(model);
      const auto own = is_split ? expected.narrow(-1, 3 * rank, 3) : expected;
      expect(found.sizes() == own.sizes() && at::allclose(found, own), name + ": the result");
      // A loss that weighs all elements of the whole result differently.
      const at::Tensor factors = values(expected.sizes(), 9);
      const auto of_whole = gradients_of((expected * factors).sum(), own_whole);
      const auto of_part =
          gradients_of((found * (is_split ? factors.narrow(-1, 3 * rank, 3) : factors)).sum(), model);
      const std::vector<std::pair<int, int>> cuts = {{0, 3}, {0, 3}, {1, 3}, {0, 5}};
      for (size_t index = 0; index < of_whole.size(); ++index) {
        expect(of_whole[index].defined() == of_part[index].defined(), name + ": which gradients");
        if (!of_whole[index].defined()) continue;
        const auto [dim, size] = cuts[index];
        expect(at::allclose(of_part[index], of_whole[index].narrow(dim, size * rank, size)),
               name + ": gradient " + std::to_string(index));
      }
    };
    int number = 0;
    for (const Use& use : uses) compare(use, true, "use " + std::to_string(number++));
    for (const Use& use : gathered) compare(use, false, "gathered use " + std::to_string(number++));
    at::NoGradGuard no_grad;
    expect(at::allclose(F::linear(x, model->weight, model->bias),
                        F::linear(x, own_whole->weight, own_whole->bias).narrow(-1, 3 * rank, 3)),
           "without grad");
  });
}

TEST_CASE("The gradient of the input of split products is summed over ranks, once for several products") {
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Parts model, whole;
    Engine engine =
        decoder_engine(*model, decoder_config(0, kSgd), kTwoTensorRanks, std::move(communicator), kPartsPlan);
    const at::Tensor x = values({3, 4}, 5);
    at::Tensor given = x.clone().requires_grad_(), expected = x.clone().requires_grad_();
    auto loss = [](Parts& m, const at::Tensor& input) {
      return at::linear(input, m->weight).square().sum() + at::linear(input, m->weight, m->bias).pow(3).sum();
    };
    Communicator& ranks = engine.mesh().along(MeshAxis::tensor);
    const at::Tensor own = loss(model, given);
    ranks.volume().reset();
    own.backward();
    expect(ranks.volume().elements(Collective::all_reduce) == 12, "one sum of 3 x 4 elements");
    loss(whole, expected).backward();
    expect(at::allclose(given.grad(), expected.grad(), 1e-4), "the gradient of x");
  });
}

TEST_CASE("Programs write to parts without grad, and scopes and states show whole parameters") {
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    Parts model, whole;
    const MeshSizes mesh{.data = 2, .tensor = 2, .pipeline = 1};
    Engine engine =
        decoder_engine(*model, decoder_config(stage, R"({"type": "AdamW", "params": {"lr": 0.1}})"), mesh,
                       std::move(communicator), kPartsPlan);
    {
      at::NoGradGuard no_grad;
      model->weight.mul_(2);
      model->bias.copy_(model->bias.clone()).zero_();
    }
    {
      GatheredParameters scope(engine, model->parameters());
      expect(at::equal(model->weight, whole->weight * 2), "the whole weight, doubled");
      expect(at::equal(model->bias, at::zeros(6)), "the whole bias, zeroed");
      expect(at::equal(model->turned, whole->turned) && at::equal(model->rows, whole->rows), "the others");
    }
    expect(model->weight.sizes() == at::IntArrayRef({3, 4}), "a part again");
    {
      GatheredParameters scope(engine, {model->weight, model->rows}, 1);
      if (engine.communicator().rank() == 1) {
        at::NoGradGuard no_grad;
        model->weight.fill_(7);
        model->rows.set_data(values({10, 4}, 8));
      }
    }
    try {
      GatheredParameters scope(engine, {model->turned}, 0);
      at::NoGradGuard no_grad;
      model->turned.fill_(9);
      throw std::runtime_error("undone");
    } catch (const std::runtime_error&) {
    }
    {
      GatheredParameters scope(engine, model->parameters());
      expect(at::equal(model->weight, at::full({6, 4}, 7)), "written in the scope");
      expect(at::equal(model->rows, values({10, 4}, 8)), "given in the scope");
      expect(at::equal(model->turned, whole->turned), "undone");
    }
    ParameterStates states(engine);
    engine.backward(F::linear(values({3, 4}, 5), model->weight).sum());
    const at::Tensor gradient = states.read_gradient(model->weight);
    expect(at::allclose(gradient, values({3, 4}, 5).sum(0).expand({6, 4})), "the whole gradient");
    states.write_gradient(model->weight, gradient * 3);
    expect(at::allclose(states.read_gradient(model->weight), gradient * 3), "the gradient, written");
    engine.step();
    const at::Tensor moment = values({6, 4}, 6);
    states.write(model->weight, "exp_avg", moment);
    expect(at::equal(states.read(model->weight, "exp_avg"), moment), "a whole moment, written");
    expect(!states.may_read_alone(), "operators sum over ranks");
  }));
}

TEST_CASE("Plans that do not fit are refused before the first step") {
  struct Row {
    TensorPlan plan;
    std::string part;
  };
  const Row rows[] = {
      {{{"layer.*.weight", TensorStyle::colwise}}, "layer.*.weight names no module"},
      {{{"weight", TensorStyle::colwise, {.unit = 4}}},
       "has size 6 along dimension 0, which is not 1 block(s) of units of 4"},
      {{{"weight", TensorStyle::colwise, {.unit = 6}}},
       "has 1 unit(s) of 6 along dimension 0 for 2 tensor ranks"},
      {{{"weight", TensorStyle::colwise, {.unit = 0}}}, "below 1"},
      {{{"weight", TensorStyle::colwise, {.blocks = 4}}}, "4 block(s)"},
      {{{"inner.weight", TensorStyle::colwise, {.blocks = 2}}, {"inner.bias", TensorStyle::colwise}},
       "splits parameter inner.bias and inner.weight differently"},
  };
  for (const auto& [plan, part] : rows) {
    CAPTURE(part);
    CHECK_NOTHROW(run_ranks(2, [&, &plan = plan, &part = part](std::shared_ptr<Communicator> communicator) {
      Parts model;
      expect_throws(
          [&] { decoder_engine(*model, decoder_config(1, kSgd), kTwoTensorRanks, communicator, plan); }, part,
          "initialize()");
    }));
  }
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Parts model;
    InitializeOptions options;
    options.communicator = communicator;
    options.mesh = kTwoTensorRanks;
    const Config config =
        parse_config(decoder_config(1, kSgd), "test", {.world_size = 2, .mesh = kTwoTensorRanks});
    expect_throws([&] { initialize(*model, config, options); }, "no plan says how they split", "no plan");
    for (const char* whole : {R"({"type": "Lamb"})", R"({"type": "Muon"})"}) {
      expect_throws(
          [&] {
            decoder_engine(*model, decoder_config(1, whole), kTwoTensorRanks, communicator, kPartsPlan);
          },
          "computes with whole parameters", whole);
    }
  }));
  CHECK_THROWS_WITH(parse_tensor_style("columnwise"), Contains("expected one of colwise, rowwise"));
}

TEST_CASE("Cross entropy of a split vocabulary is that of whole logits") {
  const at::Tensor logits = values({5, 11}, 1) * 4;
  const at::Tensor targets = at::tensor({0, 10, -100, 4, 7}, at::kLong);
  at::Tensor whole = logits.clone().requires_grad_();
  const at::Tensor expected = at::cross_entropy_loss(whole, targets);
  expected.backward();
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const int64_t sizes[] = {11};
    const Split split = share_of({"x", TensorStyle::colwise}, "x", sizes, ranks).split;
    CHECK_NOTHROW(run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
      const auto group =
          std::make_shared<TensorGroup>(Mesh(communicator, {.data = 1, .tensor = ranks, .pipeline = 1}));
      const Range own = split.parts[static_cast<size_t>(communicator->rank())].front();
      at::Tensor part = logits.narrow(1, own.begin, own.numel).clone().requires_grad_();
      const at::Tensor found = split_cross_entropy(part, targets, split, group);
      found.backward();
      expect(at::allclose(found, expected), "the loss");
      const at::Tensor outside = at::tensor({0, 11, 1, 2, 3}, at::kLong);
      const at::Tensor of_outside = split_cross_entropy(part.detach(), outside, split, group);
      expect(of_outside.isnan().item<bool>(), "a target outside of the vocabulary");
      expect(at::allclose(part.grad(), whole.grad().narrow(1, own.begin, own.numel), 1e-5, 1e-7),
             "its gradient");
    }));
  }
}

}  // namespace zerorun::testing
