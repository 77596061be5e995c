// Tests schedules against DeepSpeed's values and errors. data/lr_schedules.json was recorded from the classes
// of DeepSpeed 0.19.8 with torch.optim.AdamW and SGD.
#include "optim/schedule.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace zerorun {
namespace {

using nlohmann::json;

json load_table() {
  std::ifstream file(ZERORUN_SOURCE_DIR "/tests/optim/data/lr_schedules.json");
  return json::parse(file);
}

std::string config_text(const json& item) {
  const json optimizer = {{"type", item["optimizer"]}, {"params", {{"lr", item["base_lr"]}}}};
  const json config = {{"train_micro_batch_size_per_gpu", 1},
                       {"optimizer", optimizer},
                       {"scheduler", {{"type", item["type"]}, {"params", item["params"]}}}};
  return config.dump();
}

SchedulerConfig schedule_of(const json& item) {
  const Config config = parse_config(config_text(item), "table", 1);
  REQUIRE(config.scheduler);
  return *config.scheduler;
}

double number(const json& hex) {
  return std::strtod(hex.get<std::string>().c_str(), nullptr);
}

std::string twelve_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.11e", value);
  return text;
}

/// Compares 12 significant digits. A difference fails a Catch2 check, and the function returns false.
bool is_same(const char* what, int64_t step, double found, const json& hex) {
  const std::string expected = twelve_digits(number(hex));
  if (twelve_digits(found) == expected) return true;
  FAIL_CHECK(what << " in step " << step << ": " << twelve_digits(found) << ", DeepSpeed " << expected);
  return false;
}

/// DeepSpeed's beta1 in step `step`; null if the optimizer has no betas. Beta2 is constant.
json beta1_of(const json& item, int64_t step) {
  if (item["betas_init"].is_null()) return {};
  return step == 0 || !item.contains("beta0") ? item["betas_init"][0] : item["beta0"][step - 1];
}

/// Compares betas in step `step`. A schedule without betas keeps the optimizer's, which are 0.9 and 0.999 in
/// DeepSpeed's recorded table.
bool has_betas_of(const json& item, int64_t step, const ScheduledValues& values) {
  const json beta1 = beta1_of(item, step);
  if (beta1.is_null()) return true;
  const auto [first, second] = values.betas.value_or(std::pair(0.9, 0.999));
  return is_same("beta1", step, first, beta1) && is_same("beta2", step, second, item["betas_init"][1]);
}

}  // namespace

TEST_CASE("schedules: DeepSpeed's learning rates and betas in every step, at 12 significant digits") {
  const json table = load_table();
  int schedules = 0;
  for (json item : table["cases"]) {
    if (item.contains("error")) continue;
    INFO(item["type"] << " " << item["params"] << " " << item["optimizer"]);
    ++schedules;
    // DeepSpeed treats an unknown warmup_type as "log". ZeroRun rejects it, so the test replaces it.
    if (item["params"].value("warmup_type", "") == "cubic") item["params"]["warmup_type"] = "log";
    const SchedulerConfig schedule = schedule_of(item);
    REQUIRE(item["lr"].size() == 200);
    // The table has the value for step 0, which DeepSpeed's constructor sets, and the value after each of 200
    // calls of step().
    for (int64_t step = 0; step <= 200; ++step) {
      const ScheduledValues values = scheduled_values(schedule, 0, item["base_lr"], step);
      if (!is_same("lr", step, values.lr, step == 0 ? item["lr_init"] : item["lr"][step - 1])) break;
      if (!has_betas_of(item, step, values)) break;
    }
  }
  CHECK(schedules == 34);
}

TEST_CASE(
    "schedules: values that DeepSpeed refuses, and an unknown warmup_type, are refused with their key; a "
    "warm-up of 0 steps gets a warning") {
  const json table = load_table();
  int refused = 0, warned = 0;
  for (const json& item : table["cases"]) {
    const bool cubic = item["params"].value("warmup_type", "") == "cubic";
    if (!item.contains("error") && !cubic) continue;
    INFO(item["type"] << " " << item["params"]);
    if (item["params"].value("warmup_num_steps", 1) == 0) {
      const Config config = parse_config(config_text(item), "table", 1);
      CHECK_THAT(config.warnings.at(0), Catch::Contains("scheduler.params.warmup_num_steps"));
      ++warned;
      continue;
    }
    ++refused;
    const std::string said = cubic ? "warmup_type" : item["error"]["message"].get<std::string>();
    std::string message;
    try {
      parse_config(config_text(item), "table", 1);
    } catch (const UserError& error) {
      message = error.what();
    }
    // The config key that DeepSpeed's message names.
    std::string named;
    for (const char* key : {"warmup_num_steps", "total_num_steps", "cycle_first_step_size", "cycle_max_lr",
                            "lr_range_test_step_size", "bogus", "warmup_type"}) {
      if (said.find(key) != std::string::npos) named = key;
    }
    REQUIRE(!named.empty());
    CHECK_THAT(message, Catch::Contains("scheduler.params." + named));
  }
  CHECK(refused == 9);
  CHECK(warned == 2);
}

TEST_CASE("schedules: steps 0 and 1 both get the first value of the warm-up") {
  const WarmupLr log{.min_lr = 0.5, .max_lr = 2.5, .warmup = {.num_steps = 100}};
  CHECK(scheduled_values(log, 0, 9, 0).lr == 0.5);
  CHECK(scheduled_values(log, 0, 9, 1).lr == 0.5);
  CHECK(scheduled_values(log, 0, 9, 2).lr ==
        Approx(0.5 + 2 * std::log(2.0) / std::log(100.0)).epsilon(1e-14));
  CHECK(scheduled_values(log, 0, 9, 101).lr == 2.5);
}

TEST_CASE("schedules: without warmup_max_lr WarmupLR rises to the optimizer's own rate") {
  const WarmupLr schedule{.warmup = {.num_steps = 4, .type = WarmupType::linear}};
  CHECK(scheduled_values(schedule, 0, 0.25, 3).lr == 0.125);
  CHECK(scheduled_values(schedule, 0, 0.25, 5).lr == 0.25);
  CHECK(scheduled_values(schedule, 0, 0.25, 1'000'000).lr == 0.25);
}

TEST_CASE("schedules: WarmupDecayLR falls to the minimum and stays there") {
  const WarmupDecayLr schedule{.min_lr = 0.125,
                               .max_lr = 1.125,
                               .warmup = {.num_steps = 10, .type = WarmupType::linear},
                               .total_num_steps = 20};
  CHECK(scheduled_values(schedule, 0, 9, 11).lr == 1.125);
  CHECK(scheduled_values(schedule, 0, 9, 16).lr == 0.625);
  CHECK(scheduled_values(schedule, 0, 9, 21).lr == 0.125);
  CHECK(scheduled_values(schedule, 0, 9, 5000).lr == 0.125);
}

TEST_CASE("schedules: each parameter group follows its own values, or its own rate") {
  using List = std::vector<double>;
  const WarmupLr warmup{
      .min_lr = List{0, 0.5}, .max_lr = List{1, 2.5}, .warmup = {.num_steps = 4, .type = WarmupType::linear}};
  CHECK(scheduled_values(warmup, 0, 9, 2).lr == 0.25);
  CHECK(scheduled_values(warmup, 1, 9, 2).lr == 1.0);
  const WarmupLr own{.warmup = {.num_steps = 4, .type = WarmupType::linear}};
  CHECK(scheduled_values(own, 0, 1, 2).lr == 0.25);
  CHECK(scheduled_values(own, 1, 8, 2).lr == 2.0);
  const WarmupCosineLr cosine{.cos_min_ratio = 0, .warmup = {.num_steps = 2}, .total_num_steps = 6};
  CHECK(scheduled_values(cosine, 0, 1, 4).lr == Approx(0.5).epsilon(1e-15));
  CHECK(scheduled_values(cosine, 1, 8, 4).lr == Approx(4).epsilon(1e-15));
  const LrRangeTest range{.min_lr = List{1, 3}, .step_size = 10, .step_rate = 2};
  CHECK(scheduled_values(range, 0, 9, 5).lr == 2.0);
  CHECK(scheduled_values(range, 1, 9, 5).lr == 6.0);
  const OneCycle cycle{.min_lr = List{1, 2},
                       .max_lr = List{3, 6},
                       .first_step_size = 8,
                       .min_mom = List{0.5, 0.25},
                       .max_mom = List{0.75, 0.5}};
  const ScheduledValues first = scheduled_values(cycle, 0, 9, 4);
  const ScheduledValues second = scheduled_values(cycle, 1, 9, 4);
  CHECK(first.lr == 2.0);
  CHECK(second.lr == 4.0);
  CHECK(first.betas == std::pair(0.625, 0.99));
  CHECK(second.betas == std::pair(0.375, 0.99));
}

TEST_CASE("schedules: the cycle starts with the lowest momentum and goes on with the highest") {
  const OneCycle cycle{.min_lr = 1.0, .max_lr = 2.0, .first_step_size = 1000};
  CHECK(scheduled_values(cycle, 0, 9, 0).betas == std::pair(0.8, 0.99));
  CHECK(scheduled_values(cycle, 0, 9, 1).betas->first == Approx(0.8999).epsilon(1e-12));
  CHECK(scheduled_values(cycle, 0, 9, 1000).betas->first == Approx(0.8).epsilon(1e-12));
  CHECK(scheduled_values(cycle, 0, 9, 2000).betas->first == Approx(0.9).epsilon(1e-12));
  const OneCycle still{.min_lr = 1.0, .max_lr = 2.0, .cycle_momentum = false};
  CHECK(!scheduled_values(still, 0, 9, 500).betas);
}

}  // namespace zerorun
