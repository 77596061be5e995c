// Tests that training in 16 bits gives exactly the bits of a plain LibTorch program with the same arithmetic.
// Also tests writes of the program, no_sync() scopes, and conversions.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "comm/thread_communicator.h"
#include "device/dtypes.h"
#include "engine/gathered_parameters.h"
#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

// Which backwards of a step run in a no_sync() scope. Unless it is `none`, the program accumulates gradients
// itself, and the configured number of micro-steps is 1.
enum class InScope { none, all_but_last, all, all_on_rank_1 };

struct Mixed {
  Dtype training = Dtype::bf16;
  Dtype communication = Dtype::bf16;
  Dtype accumulation = Dtype::fp32;
  bool from_fp32 = false;
  int accumulation_steps = 1;
  double loss_scale = 1;
  InScope in_scope = InScope::none;
};

using Write = std::function<void(Net&, int step)>;  // writes to parameters as a program does
using EngineWrite = std::function<void(Engine&, Net&, int step)>;

std::string config_of(const Mixed& mixed, int stage) {
  const std::string scale = mixed.training == Dtype::fp16
                                ? R"(, "loss_scale": )" + std::to_string(mixed.loss_scale)
                                : std::string();
  const std::string precision = mixed.training == Dtype::fp32 ? std::string()
                                                              : std::string("\"") + name_of(mixed.training) +
                                                                    R"(": {"enabled": true)" + scale + "}, ";
  return R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )" +
         std::to_string(mixed.in_scope != InScope::none ? 1 : mixed.accumulation_steps) +
         R"(, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "gradient_clipping": 0, )" + precision +
         R"("communication_data_type": ")" + name_of(mixed.communication) +
         R"(", "data_types": {"grad_accum_dtype": ")" + name_of(mixed.accumulation) +
         R"(", "master_from_fp32": )" + (mixed.from_fp32 ? "true" : "false") +
         R"(}, "zero_optimization": {"stage": )" + std::to_string(stage) +
         R"(, "overlap_comm": true, "stage3_param_persistence_threshold": 0}})";
}

at::Tensor loss_of(Net& model, int step, int micro, int rank) {
  const at::ScalarType dtype = model->first->weight.scalar_type();
  return model->forward(sample(step, micro, rank).to(dtype), step != 1).to(at::kFloat).square().sum();
}

// The parameters after SGD on two ranks, computed with plain LibTorch. With `shards` gradients are summed
// over ranks and then over micro-steps (stages 2 and 3), otherwise first over micro-steps.
std::vector<at::Tensor> plain_mixed(const Mixed& mixed, bool shards, int steps, const Write& write = {}) {
  torch::NoGradGuard no_grad;
  const at::ScalarType training = scalar_type(mixed.training);
  const at::ScalarType communication = scalar_type(mixed.communication);
  const at::ScalarType accumulation = scalar_type(mixed.accumulation);
  constexpr int kRanks = 2;
  const float before = mixed.communication == Dtype::fp16 ? 0.5F : 1.0F;  // factor before the sum over ranks
  const auto divisor = static_cast<float>(kRanks * before * mixed.loss_scale);

  Net model;
  std::vector<at::Tensor> master;
  for (at::Tensor& parameter : model->parameters()) {
    const at::Tensor given = parameter.detach().clone();
    parameter.set_data(given.to(training));
    master.push_back(mixed.from_fp32 ? given : parameter.detach().to(at::kFloat));
  }
  const std::vector<at::Tensor> parameters = model->parameters();
  auto gradients = [&](int step, int micro, int rank) {
    torch::AutoGradMode with_grad(true);
    at::Tensor loss = loss_of(model, step, micro, rank);
    model->zero_grad();
    loss.backward(
        torch::full({}, mixed.loss_scale / (mixed.in_scope != InScope::none ? 1 : mixed.accumulation_steps)));
    std::vector<at::Tensor> result;
    for (const at::Tensor& parameter : parameters) {
      result.push_back(parameter.grad().defined() ? parameter.grad().clone() : torch::zeros_like(parameter));
    }
    return result;
  };
  auto sum_over_ranks = [&](const at::Tensor& a, const at::Tensor& b) {
    auto travelling = [&](const at::Tensor& local) {
      return (local.to(at::kFloat) * before).to(communication);
    };
    return (travelling(a).to(at::kFloat) + travelling(b).to(at::kFloat)).to(communication);
  };
  auto add = [&](at::Tensor& sum, const at::Tensor& more) {
    sum = sum.defined() ? (sum.to(at::kFloat) + more.to(at::kFloat)).to(accumulation) : more.to(accumulation);
  };
  for (int step = 0; step < steps; ++step) {
    if (write) write(model, step);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor unchanged = master[i].to(training).eq(parameters[i]);
      master[i] = torch::where(unchanged, master[i], parameters[i].to(at::kFloat));
    }
    std::vector<at::Tensor> sums(parameters.size()), local0(parameters.size()), local1(parameters.size());
    for (int micro = 0; micro < mixed.accumulation_steps; ++micro) {
      const auto rank0 = gradients(step, micro, 0), rank1 = gradients(step, micro, 1);
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (shards) add(sums[i], sum_over_ranks(rank0[i], rank1[i]));
        add(local0[i], rank0[i]);
        add(local1[i], rank1[i]);
      }
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].requires_grad()) continue;
      const at::Tensor sum = shards ? sums[i] : sum_over_ranks(local0[i], local1[i]).to(accumulation);
      master[i] = master[i] - (sum.to(at::kFloat) / divisor) * 0.1F;
      at::Tensor(parameters[i]).set_data(master[i].to(training));
    }
  }
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters) result.push_back(parameter.detach().clone());
  return result;
}

void expect_same(const torch::nn::Module& model, const std::vector<at::Tensor>& expected) {
  const auto parameters = model.named_parameters();
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor& found = parameters[i].value();
    if (!torch::equal(found.detach(), expected[i])) {
      throw std::runtime_error(
          c10::str(parameters[i].key(), " differs by up to ",
                   (found.detach().to(at::kFloat) - expected[i].to(at::kFloat)).abs().max().item<float>()));
    }
  }
}

void train_step(Engine& engine, Net& model, const Mixed& mixed, int step) {
  const int rank = engine.communicator().rank();
  if (mixed.in_scope == InScope::none) {
    for (int micro = 0; micro < mixed.accumulation_steps; ++micro) {
      engine.backward(loss_of(model, step, micro, rank));
      engine.step();
    }
    return;
  }
  const bool last_too =
      mixed.in_scope == InScope::all || (mixed.in_scope == InScope::all_on_rank_1 && rank == 1);
  {
    auto scope = engine.no_sync();
    for (int micro = 0; micro + (last_too ? 0 : 1) < mixed.accumulation_steps; ++micro) {
      engine.backward(loss_of(model, step, micro, rank));
    }
  }
  if (!last_too) engine.backward(loss_of(model, step, mixed.accumulation_steps - 1, rank));
  engine.step();
}

// CHECKs that the engine's parameters have the bits of plain_mixed(). `engine_write` replaces `write` in the
// engine's run and must have the same effect.
void check_against_plain(const Mixed& mixed, int stage, const Write& write = {},
                         const EngineWrite& engine_write = {}) {
  constexpr int kSteps = 4;
  const auto expected = plain_mixed(mixed, stage >= 2, kSteps, write);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, config_of(mixed, stage), communicator);
    for (int step = 0; step < kSteps; ++step) {
      if (engine_write) {
        engine_write(engine, model, step);
      } else if (write) {
        write(model, step);
      }
      train_step(engine, model, mixed, step);
    }
    expect_same(*model, expected);
  }));
}

}  // namespace

TEST_CASE("Training in 16 bits gives the bits of a plain program with the same arithmetic") {
  const int stage = GENERATE(0, 1, 2, 3);
  const int accumulation_steps = GENERATE(1, 4);
  const bool from_fp32 = GENERATE(false, true);
  CAPTURE(stage, accumulation_steps, from_fp32);
  check_against_plain({.from_fp32 = from_fp32, .accumulation_steps = accumulation_steps}, stage);
  check_against_plain({.training = Dtype::fp16,
                       .communication = Dtype::fp16,
                       .from_fp32 = from_fp32,
                       .accumulation_steps = accumulation_steps,
                       .loss_scale = 128},
                      stage);
}

TEST_CASE("Gradients are sent and accumulated in the dtypes that the config names") {
  const int stage = GENERATE(0, 1, 2, 3);
  const int accumulation_steps = GENERATE(1, 4);
  CAPTURE(stage, accumulation_steps);
  check_against_plain({.communication = Dtype::fp32, .accumulation_steps = accumulation_steps}, stage);
  check_against_plain({.accumulation = Dtype::bf16, .accumulation_steps = accumulation_steps}, stage);
  check_against_plain(
      {.training = Dtype::fp32, .communication = Dtype::bf16, .accumulation_steps = accumulation_steps},
      stage);
  check_against_plain({.training = Dtype::fp16,
                       .communication = Dtype::fp32,
                       .accumulation = Dtype::fp16,
                       .accumulation_steps = accumulation_steps,
                       .loss_scale = 64},
                      stage);
}

TEST_CASE("A program that accumulates in no_sync() scopes gets the same sums") {
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  const InScope in_scope = GENERATE(InScope::all_but_last, InScope::all, InScope::all_on_rank_1);
  CAPTURE(static_cast<int>(in_scope));
  for (const int steps : {1, 3}) {
    check_against_plain({.accumulation_steps = steps, .in_scope = in_scope}, stage);
    check_against_plain({.training = Dtype::fp16,
                         .communication = Dtype::fp16,
                         .accumulation_steps = steps,
                         .loss_scale = 16,
                         .in_scope = in_scope},
                        stage);
    check_against_plain({.training = Dtype::fp32,
                         .communication = Dtype::fp32,
                         .accumulation_steps = steps,
                         .in_scope = in_scope},
                        stage);
  }
}

TEST_CASE("In a no_sync() scope stages 0 and 1 send nothing, and step() is refused") {
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, config_of({}, stage), communicator);
    train_step(engine, model, {}, 0);
    engine.synchronize();
    communicator->volume().reset();
    auto sent = [&] { return communicator->volume().elements(Collective::reduce_scatter); };
    {
      auto scope = engine.no_sync();
      engine.backward(loss_of(model, 2, 0, communicator->rank()));
      if ((sent() > 0) != (stage >= 2)) throw std::runtime_error("sent in the scope");
      std::string message;
      try {
        engine.step();
      } catch (const UserError& error) {
        message = error.what();
      }
      if (message.find("no_sync()") == std::string::npos) throw std::runtime_error("step(): " + message);
    }
    const double before = sent();
    train_step(engine, model, {}, 3);
    if (sent() <= before) throw std::runtime_error("nothing sent behind the scope");
  }));
}

TEST_CASE(
    "Writes to 16-bit parameters are kept, and other elements keep the precision of their master weights") {
  const int stage = GENERATE(0, 1, 2, 3);
  const bool from_fp32 = GENERATE(false, true);
  CAPTURE(stage, from_fp32);
  auto write = [](Net& model, int step) {
    torch::NoGradGuard no_grad;
    if (step == 0) model->last->bias.fill_(0.3);
    if (step == 2) model->first->weight.clamp_(-0.2, 0.2);
    if (step == 3) {
      model->last->weight[1].mul_(2);
      model->branch->weight.data().copy_(model->branch->weight * 0.5);
    }
  };
  check_against_plain({.from_fp32 = from_fp32}, stage, write);
}

TEST_CASE("Raw writes of one rank to 16-bit parameters in a scope are kept") {
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  auto write = [](Net& model, int step) {
    torch::NoGradGuard no_grad;
    if (step == 1) model->last->bias[1] = 0.3;
  };
  auto engine_write = [](Engine& engine, Net& model, int step) {
    if (step != 1) return;
    GatheredParameters scope(engine, {model->last->bias}, /*modifier_rank=*/1);
    if (engine.communicator().rank() == 1) {
      model->last->bias.mutable_data_ptr<at::BFloat16>()[1] = at::BFloat16(0.3F);
    }
  };
  check_against_plain({}, stage, write, engine_write);
}

TEST_CASE("initialize() converts all parameters, buffers only if asked, and inputs only with auto_cast") {
  const std::string begin = R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD"}, )";
  auto engine_of = [&](Net& model, const std::string& more) {
    auto communicator = make_thread_communicators(1, std::chrono::seconds(10)).front();
    return make_engine(*model, begin + more + "}", communicator);
  };
  const at::Tensor points = torch::ones({2}), counts = torch::ones({2}, torch::kLong);
  SECTION("fp32") {
    Net model;
    const Engine engine = engine_of(model, R"("zero_optimization": {"stage": 1})");
    CHECK(engine.dtype() == torch::kFloat);
    CHECK(engine.loss_scale() == 1);
    CHECK(model->scale.scalar_type() == torch::kFloat);
    CHECK(engine.cast_input(points).scalar_type() == torch::kFloat);
  }
  SECTION("bf16") {
    Net model;
    const float scale = model->scale.to(torch::kBFloat16).item<float>();
    const Engine engine = engine_of(model, R"("bf16": {"enabled": true})");
    CHECK(engine.dtype() == torch::kBFloat16);
    CHECK(model->first->weight.scalar_type() == torch::kBFloat16);
    CHECK(model->scale.scalar_type() == torch::kBFloat16);
    CHECK(model->scale.item<float>() == scale);
    CHECK(model->counter.scalar_type() == torch::kFloat);
  }
  SECTION("fp16 with auto_cast and buffers") {
    Net model;
    const int stage = GENERATE(0, 3);
    const Engine engine = engine_of(
        model, R"("fp16": {"enabled": true, "auto_cast": true}, "data_types": {"buffer_dtype": "bf16"}, )"
               R"("zero_optimization": {"stage": )" +
                   std::to_string(stage) + "}");
    CHECK(engine.loss_scale() == 65536);
    CHECK(model->counter.scalar_type() == torch::kBFloat16);
    CHECK(engine.cast_input(points).scalar_type() == torch::kHalf);
    CHECK(engine.cast_input(counts).scalar_type() == torch::kLong);
  }
  SECTION("buffers that stay fp32") {
    Net model;
    const std::string pattern = GENERATE("counter", "*ount*er", "c*r", "unused");
    const Engine engine =
        engine_of(model, R"("bf16": {"enabled": true}, "data_types": {"buffer_dtype": "bf16",
                                              "keep_in_fp32_modules": [")" +
                             pattern + "\"]}");
    CHECK(model->counter.scalar_type() == (pattern == "unused" ? torch::kBFloat16 : torch::kFloat));
  }
  SECTION("a model that is in another type already") {
    Net model;
    model->to(torch::kDouble);
    CHECK_THROWS_WITH(engine_of(model, R"("zero_optimization": {"stage": 1})"),
                      Contains("first.weight has dtype Double") && Contains("enable bf16 or fp16"));
    CHECK(engine_of(model, R"("bf16": {"enabled": true})").dtype() == torch::kBFloat16);
  }
}

}  // namespace zerorun::testing
