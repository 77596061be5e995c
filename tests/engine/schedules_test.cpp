// Tests schedules of the program and of the config, by parameter group. Training equals plain LibTorch with
// the hyperparameters set by hand, and a skipped step does not advance the schedule.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "base/error.h"
#include "tests/engine/net.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/stderr_capture.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using Betas = std::optional<std::pair<double, double>>;

constexpr int kSteps = 7;
constexpr int kSkipped = 2;  // the step in which rank 1's gradients are not finite

/// The trainable parameters in two groups: the matrices, and the vectors.
std::vector<std::vector<at::Tensor>> two_groups(const Net& model) {
  std::vector<std::vector<at::Tensor>> groups(2);
  for (const at::Tensor& parameter : model->parameters()) {
    if (parameter.requires_grad()) groups[parameter.dim() >= 2 ? 0 : 1].push_back(parameter);
  }
  return groups;
}

std::vector<ParameterGroup> engine_groups(const Net& model) {
  std::vector<ParameterGroup> groups;
  for (const auto& parameters : two_groups(model)) {
    groups.push_back({.parameters = parameters, .lr = {}, .weight_decay = {}, .betas = {}});
  }
  return groups;
}

std::vector<OptimizerParamGroup> torch_groups(const Net& model) {
  std::vector<OptimizerParamGroup> groups;
  for (const auto& parameters : two_groups(model)) groups.emplace_back(parameters);
  return groups;
}

/// The loss of a batch. It is the same on every rank, so that its mean over ranks is the loss of one process.
at::Tensor loss_of(Net& model, int batch) {
  return model->forward(sample(batch, 0, 0), true).square().sum();
}

std::string config_of(int stage, const std::string& more) {
  return R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "zero_optimization": {"stage": )" +
         std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0}, )" + more + "}";
}

const std::string kAdamW = R"("optimizer": {"type": "AdamW", "params": {"lr": 0.5, "weight_decay": 0.01}})";

/// Trains kSteps steps, of which the engine must skip step kSkipped. `before_step` receives the number of
/// applied steps.
void train_with_a_skip(Engine& engine, Net& model, const std::function<void(int applied)>& before_step) {
  int applied = 0;
  for (int step = 0; step < kSteps; ++step) {
    before_step(applied);
    const bool poison = step == kSkipped && engine.communicator().rank() == 1;
    const at::Tensor loss = loss_of(model, applied);
    engine.backward(poison ? loss * std::numeric_limits<float>::infinity() : loss);
    engine.step();
    expect(engine.was_step_applied() == (step != kSkipped), "applied or skipped wrongly");
    if (step != kSkipped) ++applied;
  }
}

/// The parameters after kSteps - 1 steps of plain LibTorch. `before_step` sets the step's hyperparameters.
template <typename Optimizer>
std::vector<at::Tensor> train_plain(Net& model, Optimizer& optimizer,
                                    const std::function<void(int step)>& before_step,
                                    const std::function<void()>& after_step) {
  for (int step = 0; step < kSteps - 1; ++step) {
    before_step(step);
    optimizer.zero_grad();
    loss_of(model, step).backward();
    optimizer.step();
    after_step();
  }
  return copies_of(*model);
}

double lr_at(int64_t step, int group) {
  return group == 0 ? 0.01 * static_cast<double>(step + 1) : 0.02 / static_cast<double>(step + 1);
}

std::pair<double, double> betas_at(int64_t step) {
  return {0.5 + 0.05 * static_cast<double>(step), 0.99};
}

}  // namespace

TEST_CASE(
    "A function of the program sets learning rates and betas by group; a skipped step does not call it") {
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  Net plain;
  torch::optim::AdamW optimizer(torch_groups(plain), AdamWOptions(0.5).weight_decay(0.01));
  const auto set_by_hand = [&](int step) {
    for (int group = 0; group < 2; ++group) {
      auto& options = static_cast<AdamWOptions&>(optimizer.param_groups()[group].options());
      options.lr(lr_at(step, group));
      if (group == 0) options.betas(betas_at(step));
    }
  };
  const auto expected = train_plain(plain, optimizer, set_by_hand, [] {});
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    std::vector<std::pair<int64_t, int>> asked;
    InitializeOptions options;
    options.parameter_groups = engine_groups(model);
    options.schedule = [&](int64_t step, int group) -> ScheduledValues {
      asked.emplace_back(step, group);
      if (group == 1) return lr_at(step, group);
      return {lr_at(step, group), betas_at(step)};
    };
    Engine engine = make_engine(*model, config_of(stage, kAdamW), communicator, options);
    train_with_a_skip(engine, model, [&](int applied) {
      expect(engine.get_lr() == std::vector<double>{lr_at(applied, 0), lr_at(applied, 1)}, "get_lr()");
      expect(engine.get_betas() == std::vector<Betas>{betas_at(applied), std::pair(0.9, 0.999)},
             "get_betas()");
    });
    std::vector<std::pair<int64_t, int>> once;
    for (int64_t step = 0; step < kSteps; ++step) {
      for (int group = 0; group < 2; ++group) once.emplace_back(step, group);
    }
    expect(asked == once, "each step and group once, in order");
    check_close(*model, expected);
  });
}

TEST_CASE("A function of the program may return only the learning rate, also if fp16 overflows") {
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    InitializeOptions options;
    options.schedule = [](int64_t step, int group) { return lr_at(step, group); };
    Engine engine = make_engine(
        *model,
        config_of(2, kAdamW + R"(, "fp16": {"enabled": true, "initial_scale_power": 6, "hysteresis": 1})"),
        communicator, options);
    int applied = 0;
    for (int step = 0; step < 5; ++step) {
      expect(engine.get_lr() == std::vector<double>{lr_at(applied, 0)}, "get_lr()");
      const bool overflows = step == 1 || step == 2;
      const at::Tensor out = model->forward(sample(step, 0, 0).to(engine.dtype()), true).to(torch::kFloat);
      engine.backward(out.square().sum() * (overflows ? 1e30 : 1.0));
      engine.step();
      expect(engine.was_step_applied() != overflows, "applied or skipped wrongly");
      if (!overflows) ++applied;
    }
    expect(engine.loss_scale() == 16, "the loss scale fell");
  });
}

TEST_CASE("A torch::optim scheduler of the program is stepped after applied steps only") {
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  const auto options_of = [](std::vector<OptimizerParamGroup>& groups) {
    groups[1].set_options(std::make_unique<torch::optim::SGDOptions>(0.04));
  };
  Net plain;
  auto plain_groups = torch_groups(plain);
  options_of(plain_groups);
  torch::optim::SGD plain_optimizer(plain_groups, torch::optim::SGDOptions(0.02));
  torch::optim::StepLR plain_scheduler(plain_optimizer, 2, 0.5);
  std::vector<std::vector<double>> lrs;
  const auto expected = train_plain(
      plain, plain_optimizer,
      [&](int) {
        lrs.emplace_back();
        for (const auto& group : plain_optimizer.param_groups())
          lrs.back().push_back(group.options().get_lr());
      },
      [&] { plain_scheduler.step(); });
  REQUIRE(lrs.front() == std::vector<double>{0.02, 0.04});
  REQUIRE(lrs.back() == std::vector<double>{0.005, 0.01});
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    auto groups = torch_groups(model);
    options_of(groups);
    torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(0.02));
    torch::optim::StepLR scheduler(optimizer, 2, 0.5);
    InitializeOptions options;
    options.optimizer = &optimizer;
    options.lr_scheduler = &scheduler;
    Engine engine = make_engine(*model, config_of(stage, R"("steps_per_print": 1)"), communicator, options);
    train_with_a_skip(engine, model, [&](int applied) {
      if (applied < kSteps - 1) expect(engine.get_lr() == lrs[applied], "get_lr()");
    });
    check_close(*model, expected);
  });
}

TEST_CASE("A schedule of the config starts from each group's own learning rate") {
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    InitializeOptions options;
    options.parameter_groups = engine_groups(model);
    options.parameter_groups[1].lr = 0.25;
    Engine own = make_engine(*model, config_of(1, kAdamW + R"(, "scheduler": {"type": "WarmupLR", "params":
        {"warmup_num_steps": 4, "warmup_type": "linear"}})"),
                             communicator, options);
    // Steps 0 and 1 both have the first value of the warm-up.
    train_with_a_skip(own, model, [&](int applied) {
      const double share = std::min(std::max(applied - 1, 0) / 4.0, 1.0);
      expect(own.get_lr() == std::vector<double>{0.5 * share, 0.25 * share}, "get_lr()");
    });
  });
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    InitializeOptions options;
    options.parameter_groups = engine_groups(model);
    Engine cycle = make_engine(*model, config_of(1, kAdamW + R"(, "scheduler": {"type": "OneCycle", "params":
        {"cycle_min_lr": [0.25, 0.5], "cycle_max_lr": 1, "cycle_first_step_size": 2,
         "cycle_min_mom": [0.5, 0.25], "cycle_max_mom": 0.75}})"),
                               communicator, options);
    const auto check = [&](const std::vector<double>& lrs, double first, double second) {
      CHECK(cycle.get_lr() == lrs);
      CHECK((cycle.get_betas() == std::vector<Betas>{std::pair(first, 0.99), std::pair(second, 0.99)}));
      cycle.backward(loss_of(model, 0));
      cycle.step();
    };
    check({0.25, 0.5}, 0.5, 0.25);
    check({0.625, 0.75}, 0.625, 0.5);
    check({1, 1}, 0.5, 0.25);
    check({0.625, 0.75}, 0.625, 0.5);
    check({0.25, 0.5}, 0.75, 0.75);
    check({0.25, 0.5}, 0.75, 0.75);
  });
}

TEST_CASE("OneCycle changes the betas of a torch::optim optimizer, and the log says if it has no betas") {
  const std::string cycle = R"("scheduler": {"type": "OneCycle", "params":
      {"cycle_min_lr": 0.25, "cycle_max_lr": 1, "cycle_first_step_size": 2}})";
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net adam_model, sgd_model;
    torch::optim::Adam adam(torch_groups(adam_model), torch::optim::AdamOptions(0.5));
    torch::optim::SGD sgd(torch_groups(sgd_model), torch::optim::SGDOptions(0.5).momentum(0.7));
    InitializeOptions options;
    options.optimizer = &adam;
    Engine with_betas = make_engine(*adam_model, config_of(1, cycle), communicator, options);
    CHECK((with_betas.get_betas() == std::vector<Betas>(2, std::pair(0.8, 0.99))));
    CHECK(static_cast<torch::optim::AdamOptions&>(adam.param_groups()[1].options()).betas() ==
          std::tuple(0.8, 0.99));
    options.optimizer = &sgd;
    StderrCapture capture;
    Engine without = make_engine(*sgd_model, config_of(1, cycle), communicator, options);
    CHECK_THAT(capture.text(), Contains("cycle_momentum has no effect") && Contains("no betas"));
    CHECK((without.get_betas() == std::vector<Betas>(2)));
    CHECK(without.get_lr() == std::vector<double>{0.25, 0.25});
    CHECK(static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).momentum() == 0.7);
  });
}

TEST_CASE("Schedules that do not fit are refused by name") {
  const std::string scheduler = R"("scheduler": {"type": "WarmupLR"})";
  const std::string sgd = R"("optimizer": {"type": "SGD", "params": {"lr": 0.1}})";
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    torch::optim::SGD optimizer(torch_groups(model), torch::optim::SGDOptions(0.5));
    torch::optim::StepLR step_lr(optimizer, 2);
    const auto with = [&](const std::string& more, const std::function<void(InitializeOptions&)>& set) {
      InitializeOptions options;
      set(options);
      make_engine(*model, config_of(1, more), communicator, options);
    };
    const Schedule constant = [](int64_t, int) { return 0.1; };
    CHECK_THROWS_WITH(with(sgd + ", " + scheduler, [&](auto& options) { options.schedule = constant; }),
                      Contains("both the config and the program name a schedule"));
    const auto with_step_lr = [&](InitializeOptions& options) {
      options.optimizer = &optimizer;
      options.lr_scheduler = &step_lr;
    };
    CHECK_THROWS_WITH(with(scheduler, with_step_lr), Contains("both the config and the program"));
    const auto with_two = [&](InitializeOptions& options) {
      with_step_lr(options);
      options.schedule = constant;
    };
    CHECK_THROWS_WITH(with(R"("steps_per_print": 1)", with_two), Contains("two schedules"));
    CHECK_THROWS_WITH(with(sgd, [&](auto& options) { options.lr_scheduler = &step_lr; }),
                      Contains("lr_scheduler") && Contains("InitializeOptions::optimizer"));
    const auto with_groups = [&](InitializeOptions& options) {
      options.parameter_groups = engine_groups(model);
    };
    const std::string lists = R"(, "scheduler": {"type": "LRRangeTest", "params":
        {"lr_range_test_min_lr": LIST}})";
    for (const char* list : {"[0.1]", "[0.1, 0.2, 0.3]"}) {
      std::string more = sgd + lists;
      more.replace(more.find("LIST"), 4, list);
      CHECK_THROWS_WITH(with(more, with_groups), Contains("scheduler.params.lr_range_test_min_lr") &&
                                                     Contains("a list of 2, one for each parameter group"));
    }
    CHECK_THROWS_WITH(with(sgd, [&](auto& options) { options.schedule = [](int64_t, int) { return NAN; }; }),
                      Contains("step 0, parameter group 0") && Contains("finite"));
    CHECK_THROWS_WITH(with(sgd, [&](auto& options) { options.schedule = [](int64_t, int) { return -1; }; }),
                      Contains("at least 0, found -1"));
    const Schedule betas = [](int64_t, int) { return ScheduledValues(0.1, std::pair(0.9, 0.99)); };
    CHECK_THROWS_WITH(with(sgd, [&](auto& options) { options.schedule = betas; }),
                      Contains("betas for an optimizer that has none"));
  });
}

TEST_CASE("If a schedule throws, no step uses the values of an earlier step") {
  const bool on_second_group = GENERATE(false, true);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    int refusals = 0;
    InitializeOptions options;
    Net model;
    options.parameter_groups = engine_groups(model);
    options.schedule = [&](int64_t step, int group) {
      if (step == 2 && group == (on_second_group ? 1 : 0) && ++refusals <= 3) {
        throw std::range_error("no such file");
      }
      return 1.0 / static_cast<double>(step + 1);
    };
    Engine engine = make_engine(*model, config_of(1, R"("optimizer": {"type": "SGD", "params": {"lr": 0}})"),
                                communicator, options);
    auto refused = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const std::range_error&) {
        return true;
      }
      return false;
    };
    auto state = [&] {
      engine.synchronize();
      return torch::cat({model->first->weight.detach().flatten(), model->last->bias.detach()}).clone();
    };
    for (int step = 0; step < 2; ++step) {
      expect(engine.get_lr() == std::vector<double>(2, 1.0 / (step + 1)), "learning rates");
      engine.backward(loss_of(model, step));
      expect(refused([&] { engine.step(); }) == (step == 1), "only step 2 has no schedule");
    }
    expect(engine.global_steps() == 2 && engine.was_step_applied(), "the step before counts");
    const at::Tensor before = state();
    expect(refused([&] { engine.backward(loss_of(model, 2)); }), "backward() asks again");
    expect(refused([&] { engine.backward(loss_of(model, 2)); }), "and again");
    expect(torch::equal(before, state()) && engine.global_steps() == 2, "nothing has changed");
    engine.backward(loss_of(model, 2));
    expect(engine.get_lr() == std::vector<double>(2, 1.0 / 3), "the learning rate of step 2");
    engine.step();
    expect(engine.global_steps() == 3 && !torch::equal(before, state()), "goes on");
  }));
}

TEST_CASE("Ranks with different schedules get an error") {
  const std::string sgd = R"("optimizer": {"type": "SGD", "params": {"lr": 0.1}})";
  const char* schedules[] = {
      R"({"type": "WarmupLR", "params": {"warmup_num_steps": RANK}})",
      R"({"type": "WarmupLR", "params": {"warmup_max_lr": RANK}})",
      R"({"type": "WarmupDecayLR", "params": {"total_num_steps": RANK}})",
      R"({"type": "WarmupCosineLR", "params": {"total_num_steps": 9, "cos_min_ratio": RANK}})",
      R"({"type": "LRRangeTest", "params": {"lr_range_test_step_size": RANK}})",
      R"({"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1, "decay_mom_rate": RANK}})"};
  for (const std::string schedule : schedules) {
    INFO(schedule);
    CHECK_THROWS_WITH(run_ranks(2,
                                [&](std::shared_ptr<Communicator> communicator) {
                                  Net model;
                                  std::string own = schedule;
                                  own.replace(own.find("RANK"), 4, std::to_string(communicator->rank() + 1));
                                  make_engine(*model, config_of(1, sgd + R"(, "scheduler": )" + own),
                                              communicator);
                                }),
                      Contains("rank 1 has another model or another config"));
  }
}

}  // namespace zerorun::testing
