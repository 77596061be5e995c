// Compares the loss scaler's state after each update with DeepSpeed's. data/loss_scaler.json was recorded
// from DeepSpeed's DynamicLossScaler.
#include "optim/loss_scaler.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

namespace zerorun {
namespace {

using nlohmann::json;

json load_table() {
  std::ifstream file(ZERORUN_SOURCE_DIR "/tests/optim/data/loss_scaler.json");
  return json::parse(file);
}

LossScaleConfig config_of(const json& item) {
  return {.fixed = {},
          .initial = item["init_scale"],
          .window = item["scale_window"],
          .hysteresis = item["hysteresis"],
          .consecutive_hysteresis = item["consecutive_hysteresis"],
          .minimum = item["min_scale"]};
}

std::string text_of(const LossScaler::State& state) {
  std::ostringstream text;
  text.precision(17);
  text << state.scale << " " << state.updates << " " << state.last_overflow << " " << state.hysteresis;
  return text.str();
}

std::vector<std::string> trace_of(const json& item) {
  std::vector<std::string> trace;
  for (const json& run : item["runs"]) {
    for (int i = 0; i < run[0]; ++i) {
      trace.push_back(text_of({.scale = run[1],
                               .updates = static_cast<int64_t>(trace.size()) + 1,
                               .last_overflow = run[2],
                               .hysteresis = run[3]}));
    }
  }
  return trace;
}

// Describes the first difference between our scaler and the trace; "" if there is none.
std::string first_difference(const json& item, const std::string& overflows,
                             const std::vector<std::string>& trace) {
  LossScaler scaler(config_of(item));
  for (size_t step = 0; step < overflows.size(); ++step) {
    const std::string at = "update " + std::to_string(step) + ": ";
    const bool goes_on = scaler.update(overflows[step] == '1');
    if (step == trace.size()) return goes_on ? at + "the run goes on where DeepSpeed raises" : "";
    if (!goes_on && item["raise_error_at_min_scale"]) return at + "the run ends where DeepSpeed's goes on";
    if (text_of(scaler.state()) != trace[step]) {
      return at + text_of(scaler.state()) + ", DeepSpeed " + trace[step];
    }
  }
  return item["raised"] ? "the run never ends" : "";
}

}  // namespace

TEST_CASE("loss scale: DeepSpeed's state after every update of 112 recorded runs") {
  const json table = load_table();
  REQUIRE(table["cases"].size() == 112);
  int raised = 0;
  size_t updates = 0;
  for (size_t number = 0; number < table["cases"].size(); ++number) {
    const json& item = table["cases"][number];
    const std::vector<std::string> trace = trace_of(item);
    raised += item["raised"].get<bool>();
    updates += trace.size();
    INFO("case " << number << ", " << item["sequence"]);
    CHECK(first_difference(item, table["sequences"][item["sequence"].get<std::string>()], trace) == "");
  }
  CHECK(raised == 28);
  CHECK(updates == 7214);
}

TEST_CASE("loss scale: a fixed scale does not change, and training continues") {
  LossScaler scaler({.fixed = 128.0, .initial = 4, .window = 1, .hysteresis = 1});
  for (bool overflow : {true, false, true, true, false, false}) {
    CHECK(scaler.update(overflow));
    CHECK(scaler.scale() == 128);
  }
  CHECK(scaler.state().updates == 6);
}

TEST_CASE("loss scale: update() fails only if it must lower a scale that is at its minimum") {
  LossScaler scaler({.fixed = {}, .initial = 4, .window = 1000, .hysteresis = 2, .minimum = 2});
  CHECK(scaler.update(true));  // the hysteresis allows one overflow without a lower scale
  CHECK(scaler.scale() == 4);
  CHECK(scaler.update(true));
  CHECK(scaler.scale() == 2);
  CHECK(scaler.update(false));
  CHECK_FALSE(scaler.update(true));
  CHECK(scaler.scale() == 2);
  CHECK(scaler.state().updates == 4);
  CHECK(scaler.state().last_overflow == 3);
}

}  // namespace zerorun
