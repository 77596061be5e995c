// Tests whole values and gradients of parameters that are split among tensor ranks: scopes in which one rank
// of the job writes, and ParameterStates.
#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "engine/gathered_parameters.h"
#include "engine/parameter_states.h"
#include "tests/engine/tensor_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

const DecoderOptions kOptions = {
    .gated = true, .head_norms = true, .tied = true, .heads = 16, .key_heads = 8};
// Split along its outputs, along its inputs, an embedding; whole with gradients that are summed; whole.
const char* const kNames[] = {"layers.1.q.weight", "layers.0.down.weight", "embedding.weight",
                              "layers.1.q_norm.weight", "layers.0.norm.weight"};

Engine access_engine(torch::nn::Module& model, int stage, std::shared_ptr<Communicator> communicator) {
  return decoder_engine(model, decoder_config(stage, kSgd), kTwoByTwo, std::move(communicator),
                        plan_of(kOptions));
}

at::Tensor whole_values(Engine& engine, const at::Tensor& parameter) {
  GatheredParameters scope(engine, {parameter});
  return parameter.detach().clone();
}

void expect_values(Engine& engine, const at::Tensor& parameter, const at::Tensor& values,
                   const std::string& what) {
  expect(whole_values(engine, parameter).equal(values), what);
}

void check_scopes(Engine& engine, const at::Tensor& parameter, const std::string& name) {
  const c10::NoGradGuard no_grad;
  const int own = engine.communicator().rank();
  const at::Tensor numbers = at::arange(whole_values(engine, parameter).numel(), at::kFloat)
                                 .view(ParameterStates(engine).whole_sizes(parameter));
  for (int rank = 0; rank < 4; ++rank) {
    {
      GatheredParameters scope(engine, {parameter}, rank);
      if (own == rank) at::Tensor(parameter).copy_(numbers + rank);
    }
    expect_values(engine, parameter, numbers + rank, name + ", written by rank " + std::to_string(rank));
  }
  {
    GatheredParameters scope(engine, {parameter}, 1);
    if (own == 1) at::Tensor(parameter).set_data(numbers * 2);
  }
  expect_values(engine, parameter, numbers * 2, name + ", in other memory");
  {
    GatheredParameters scope(engine, {parameter});
    at::Tensor(parameter).mul_(2);
  }
  expect_values(engine, parameter, numbers * 4, name + ", written by all ranks");
  {
    GatheredParameters outer(engine, {parameter});
    {
      GatheredParameters inner(engine, {parameter}, 2);
      if (own == 2) at::Tensor(parameter).copy_(numbers);
    }
    expect(parameter.equal(numbers), name + ", in a scope around that of the modifier rank");
  }
  expect_values(engine, parameter, numbers, name + ", after a scope in a scope");
}

void check_gradient(Engine& engine, const at::Tensor& parameter, const at::Tensor& expected,
                    const std::string& name) {
  ParameterStates states(engine);
  const double off = (states.read_gradient(parameter) - expected).abs().max().item<double>();
  expect(off < 1e-6, "the gradient of " + name + " differs by " + std::to_string(off));
  const at::Tensor values = at::full_like(expected, 0.5);
  states.write_gradient(parameter, values);
  expect(states.read_gradient(parameter).equal(values), "the written gradient of " + name);
}

}  // namespace

TEST_CASE("Split parameters: gradients are whole, and one rank of the job writes for all in a scope") {
  const int stage = GENERATE(0, 1, 3);
  CAPTURE(stage);
  const at::Tensor tokens = at::arange(14).view({2, 7});
  Decoder plain(kOptions);
  plain->loss(tokens).backward();
  const auto expected = plain->named_parameters();
  CHECK_NOTHROW(run_ranks(ranks_of(kTwoByTwo), [&](std::shared_ptr<Communicator> communicator) {
    Decoder model(kOptions);
    Engine engine = access_engine(*model, stage, std::move(communicator));
    const auto parameters = model->named_parameters();
    engine.backward(model->loss(tokens));
    for (const char* name : kNames) check_gradient(engine, parameters[name], expected[name].grad(), name);
    engine.step();
    for (const char* name : kNames) check_scopes(engine, parameters[name], name);
  }));
}

TEST_CASE("Split parameters: other memory that does not fit is an error on all ranks") {
  CHECK_NOTHROW(run_ranks(ranks_of(kTwoByTwo), [&](std::shared_ptr<Communicator> communicator) {
    Decoder model(kOptions);
    Engine engine = access_engine(*model, 1, std::move(communicator));
    const at::Tensor parameter = model->named_parameters()[kNames[0]];
    const at::Tensor before = whole_values(engine, parameter);
    for (const bool has_modifier : {true, false}) {
      expect_throws(
          [&] {
            GatheredParameters scope(engine, {parameter}, has_modifier ? std::optional(3) : std::nullopt);
            if (!has_modifier || engine.communicator().rank() == 3)
              at::Tensor(parameter).set_data(at::zeros({3}));
          },
          has_modifier ? "has got [3]" : "has got other memory", "memory of another shape");
      expect_values(engine, parameter, before, "values after the error");
    }
  }));
}

}  // namespace zerorun::testing
