// Tests how a run reads the settings of each schedule.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/config/refusal.h"

using namespace zerorun;
using namespace zerorun::test;

namespace {

Config parse(const std::string& settings) {
  return parse_config(with(settings), "conf", 1);
}

template <typename Schedule>
Schedule scheduler(const std::string& type, const std::string& params) {
  const Config config = parse(R"("scheduler": {"type": ")" + type + R"(", "params": {)" + params + "}}");
  REQUIRE(config.scheduler);
  REQUIRE(std::holds_alternative<Schedule>(*config.scheduler));
  return std::get<Schedule>(*config.scheduler);
}

}  // namespace

TEST_CASE("scheduler parameters are read, and the default of warmup_max_lr depends on the type") {
  const auto usual = scheduler<WarmupLr>("WarmupLR", "");
  CHECK(usual.min_lr == PerGroup(0.0));
  CHECK(!usual.max_lr);
  CHECK(usual.warmup.num_steps == 1000);
  CHECK(usual.warmup.type == WarmupType::log);
  CHECK(!scheduler<WarmupLr>("WarmupLR", R"("warmup_max_lr": null)").max_lr);
  CHECK(scheduler<WarmupDecayLr>("WarmupDecayLR", R"("total_num_steps": 20)").max_lr == PerGroup(0.001));
  const auto decay = scheduler<WarmupDecayLr>("WarmupDecayLR", R"("warmup_min_lr": 1e-5,
      "warmup_max_lr": 0.002, "warmup_num_steps": 1, "warmup_type": "linear", "total_num_steps": 15e1,
      "last_batch_iteration": -1)");
  CHECK(decay.min_lr == PerGroup(1e-5));
  CHECK(decay.max_lr == PerGroup(0.002));
  CHECK(decay.warmup.num_steps == 1);
  CHECK(decay.warmup.type == WarmupType::linear);
  CHECK(decay.total_num_steps == 150);
  CHECK(parse(R"("scheduler": {"type": "WarmupLR"})").scheduler == SchedulerConfig(WarmupLr()));
  const auto cosine = scheduler<WarmupCosineLr>("WarmupCosineLR", R"("total_num_steps": 90,
      "warmup_num_steps": 9, "warmup_min_ratio": 0.25, "cos_min_ratio": 0.5, "warmup_type": "linear")");
  CHECK(cosine.total_num_steps == 90);
  CHECK(cosine.warmup.num_steps == 9);
  CHECK(cosine.warmup.type == WarmupType::linear);
  CHECK(cosine.min_ratio == 0.25);
  CHECK(cosine.cos_min_ratio == 0.5);
  CHECK(scheduler<WarmupCosineLr>("WarmupCosineLR", R"("total_num_steps": 90)").cos_min_ratio == 0.0001);
}

TEST_CASE("without warmup_max_lr WarmupLR shows the optimizer's rate and leaves each group its own") {
  const Config config = parse(R"("optimizer": {"type": "Adam", "params": {"lr": 0.5}},
                                 "scheduler": {"type": "WarmupLR"})");
  REQUIRE(config.scheduler);
  CHECK(!std::get<WarmupLr>(*config.scheduler).max_lr);
  CHECK_THAT(config.resolved, Catch::Contains("\"warmup_max_lr\": 0.5"));
}

TEST_CASE("parameters of the cycle and of the range test are read") {
  const auto usual = scheduler<OneCycle>("OneCycle", R"("cycle_min_lr": 0.25, "cycle_max_lr": 0.5)");
  CHECK(usual == OneCycle{.min_lr = 0.25, .max_lr = 0.5});
  CHECK(usual.first_step_size == 2000);
  CHECK(usual.cycle_momentum);
  CHECK(usual.min_mom == PerGroup(0.8));
  CHECK(usual.max_mom == PerGroup(0.9));
  const auto all = scheduler<OneCycle>("OneCycle", R"("cycle_min_lr": 0.25, "cycle_max_lr": 0.5,
      "cycle_first_step_size": 7, "cycle_second_step_size": 0, "cycle_first_stair_count": -1,
      "cycle_second_stair_count": 3, "decay_step_size": 4, "decay_lr_rate": 0.125, "cycle_momentum": false,
      "cycle_min_mom": 0.5, "cycle_max_mom": 0.75, "decay_mom_rate": -0.5)");
  CHECK(all.first_step_size == 7);
  CHECK(all.second_step_size == 0);
  CHECK(all.first_stair_count == -1);
  CHECK(all.second_stair_count == 3);
  CHECK(all.decay_step_size == 4);
  CHECK(all.decay_lr_rate == 0.125);
  CHECK(!all.cycle_momentum);
  CHECK(all.min_mom == PerGroup(0.5));
  CHECK(all.max_mom == PerGroup(0.75));
  CHECK(all.decay_mom_rate == -0.5);
  CHECK(scheduler<LrRangeTest>("LRRangeTest", "") == LrRangeTest());
  const auto range = scheduler<LrRangeTest>("LRRangeTest", R"("lr_range_test_min_lr": 0.5,
      "lr_range_test_step_size": 3, "lr_range_test_step_rate": 0.25, "lr_range_test_staircase": true)");
  CHECK(range == LrRangeTest{.min_lr = 0.5, .step_size = 3, .step_rate = 0.25, .staircase = true});
}

TEST_CASE("learning rates and momenta of schedules may be lists, one for each parameter group") {
  const PerGroup list = std::vector<double>{0.25, 0.5};
  CHECK(scheduler<WarmupLr>("WarmupLR", R"("warmup_min_lr": [0.25, 0.5])").min_lr == list);
  CHECK(scheduler<WarmupLr>("WarmupLR", R"("warmup_max_lr": [0.25, 0.5])").max_lr == list);
  CHECK(scheduler<WarmupLr>("WarmupLR", R"("warmup_max_lr": [0.5])").max_lr ==
        PerGroup(std::vector<double>{0.5}));
  CHECK(scheduler<LrRangeTest>("LRRangeTest", R"("lr_range_test_min_lr": [0.25, 0.5])").min_lr == list);
  const auto cycle = scheduler<OneCycle>("OneCycle", R"("cycle_min_lr": [0.25, 0.5], "cycle_max_lr": 1,
      "cycle_min_mom": [0.25, 0.5], "cycle_max_mom": [0.25, 0.5])");
  CHECK(cycle.min_lr == list);
  CHECK(cycle.max_lr == PerGroup(1.0));
  CHECK(cycle.min_mom == list);
  CHECK(cycle.max_mom == list);
  const Config given =
      parse_config(with(R"("scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}})"), "conf",
                   {.arguments = {{"scheduler.params.warmup_max_lr", std::vector<double>{0.25, 0.5}}}});
  CHECK(std::get<WarmupLr>(*given.scheduler).max_lr == list);
}

TEST_CASE("a note says that a cycle does not change the momentum of an optimizer without betas") {
  const std::string cycle = R"("scheduler": {"type": "OneCycle",
      "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2MORE}}, "optimizer": {"type": "OPTIMIZER"})";
  const auto notes = [&](const std::string& optimizer, const std::string& more) {
    std::string settings = cycle;
    settings.replace(settings.find("MORE"), 4, more);
    settings.replace(settings.find("OPTIMIZER"), 9, optimizer);
    return told(parse(settings));
  };
  CHECK(notes("AdamW", "").empty());
  CHECK(notes("SGD", R"(, "cycle_momentum": false)").empty());
  const auto lines = notes("SGD", "");
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], Catch::Contains("scheduler.params.cycle_momentum: SGD has no betas"));
}
