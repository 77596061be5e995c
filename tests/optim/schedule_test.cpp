// Schedules against DeepSpeed's own values (data/lr_schedules.json, made by running DeepSpeed's classes).
#include "optim/schedule.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

namespace zerorun {
namespace {

nlohmann::json load_table() {
  std::ifstream file(ZERORUN_SOURCE_DIR "/tests/optim/data/lr_schedules.json");
  return nlohmann::json::parse(file);
}

SchedulerConfig schedule_of(const nlohmann::json& item) {
  SchedulerConfig schedule;
  if (item["type"] == "WarmupDecayLR") {
    schedule.type = SchedulerType::warmup_decay_lr;
    schedule.warmup_max_lr = 0.001;  // DeepSpeed's default for this type
  }
  for (const auto& [key, value] : item["params"].items()) {
    if (key == "warmup_min_lr") {
      schedule.warmup_min_lr = value;
    } else if (key == "warmup_max_lr") {
      schedule.warmup_max_lr = value.get<double>();
    } else if (key == "warmup_num_steps") {
      schedule.warmup_num_steps = value;
    } else if (key == "total_num_steps") {
      schedule.total_num_steps = value;
    } else if (key == "warmup_type") {
      REQUIRE(value == "linear");
      schedule.warmup_type = WarmupType::linear;
    } else {
      FAIL("unexpected key " << key);
    }
  }
  return schedule;
}

std::string twelve_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.11e", value);
  return text;
}

}  // namespace

TEST_CASE("schedules: DeepSpeed's learning rates in every step, at 12 significant digits") {
  const nlohmann::json table = load_table();
  REQUIRE(table["cases"].size() == 11);
  for (const auto& item : table["cases"]) {
    INFO(item["type"] << " " << item["params"]);
    const SchedulerConfig schedule = schedule_of(item);
    REQUIRE(item["lr"].size() == 201);
    for (size_t step = 0; step < item["lr"].size(); ++step) {
      const double expected = std::strtod(item["lr"][step].get<std::string>().c_str(), nullptr);
      const double got = scheduled_lr(schedule, item["base_lr"], static_cast<int64_t>(step));
      if (twelve_digits(got) == twelve_digits(expected)) continue;
      FAIL_CHECK("step " << step << ": " << twelve_digits(got) << ", DeepSpeed " << twelve_digits(expected));
      break;
    }
  }
}

TEST_CASE("schedules: steps 0 and 1 both get the first value of the warm-up") {
  const SchedulerConfig log{.warmup_min_lr = 0.5, .warmup_max_lr = 2.5, .warmup_num_steps = 100};
  CHECK(scheduled_lr(log, 9, 0) == 0.5);
  CHECK(scheduled_lr(log, 9, 1) == 0.5);
  CHECK(scheduled_lr(log, 9, 2) == Approx(0.5 + 2 * std::log(2.0) / std::log(100.0)).epsilon(1e-14));
  CHECK(scheduled_lr(log, 9, 101) == 2.5);
}

TEST_CASE("schedules: without warmup_max_lr WarmupLR rises to the optimizer's own rate") {
  SchedulerConfig schedule;
  schedule.warmup_num_steps = 4;
  schedule.warmup_type = WarmupType::linear;
  CHECK(scheduled_lr(schedule, 0.25, 3) == 0.125);
  CHECK(scheduled_lr(schedule, 0.25, 5) == 0.25);
  CHECK(scheduled_lr(schedule, 0.25, 1'000'000) == 0.25);
}

TEST_CASE("schedules: WarmupDecayLR falls to the minimum and stays there") {
  const SchedulerConfig schedule{.type = SchedulerType::warmup_decay_lr,
                                 .warmup_min_lr = 0.125,
                                 .warmup_max_lr = 1.125,
                                 .warmup_num_steps = 10,
                                 .warmup_type = WarmupType::linear,
                                 .total_num_steps = 20};
  CHECK(scheduled_lr(schedule, 9, 11) == 1.125);
  CHECK(scheduled_lr(schedule, 9, 16) == 0.625);
  CHECK(scheduled_lr(schedule, 9, 21) == 0.125);
  CHECK(scheduled_lr(schedule, 9, 5000) == 0.125);
}

}  // namespace zerorun
