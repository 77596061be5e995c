// Tests how the fp16 section configures loss scaling.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "config/check.h"
#include "tests/config/refusal.h"

using namespace zerorun;
using namespace zerorun::test;

namespace {

const std::string fp16 = R"("fp16": {"enabled": true})";

PrecisionConfig precision(const std::string& settings) {
  return parse_config(with(settings), "conf", 1).precision;
}

/// Reads a configuration that enables fp16 and has `keys` in the fp16 section.
Config scaled(const std::string& keys) {
  return parse_config(with(R"("fp16": {"enabled": true, )" + keys + "}"), "conf", 1);
}

}  // namespace

TEST_CASE("loss scaling has DeepSpeed's defaults") {
  const LossScaleConfig scale = precision(fp16).loss_scale;
  CHECK(!scale.fixed);
  CHECK(scale.initial == 65536);
  CHECK(scale.window == 1000);
  CHECK(scale.hysteresis == 2);
  CHECK(!scale.consecutive_hysteresis);
  CHECK(scale.minimum == 1);
  const Config automatic = scaled(
      R"("auto_cast": "auto", "loss_scale": "auto", "initial_scale_power": "auto", "loss_scale_window": "auto",
         "hysteresis": "auto", "consecutive_hysteresis": "auto", "min_loss_scale": "auto")");
  CHECK(!automatic.precision.auto_cast);
  CHECK(!automatic.precision.loss_scale.fixed);
  CHECK(automatic.precision.loss_scale.initial == 65536);
  CHECK(automatic.precision.loss_scale.window == 1000);
  CHECK(automatic.precision.loss_scale.hysteresis == 2);
  CHECK(automatic.precision.loss_scale.minimum == 1);
}

TEST_CASE("each key of loss scaling is read into the Config") {
  const Config config = scaled(R"("auto_cast": true, "loss_scale": 0, "initial_scale_power": 12,
      "loss_scale_window": 5e2, "hysteresis": 3, "consecutive_hysteresis": true, "min_loss_scale": 4)");
  CHECK(told(config).empty());
  CHECK(config.precision.auto_cast);
  const LossScaleConfig& scale = config.precision.loss_scale;
  CHECK(!scale.fixed);
  CHECK(scale.initial == 4096);
  CHECK(scale.window == 500);
  CHECK(scale.hysteresis == 3);
  CHECK(scale.consecutive_hysteresis);
  CHECK(scale.minimum == 4);
  CHECK(scaled(R"("initial_scale_power": 0)").precision.loss_scale.initial == 1);
  CHECK(scaled(R"("initial_scale_power": 32)").precision.loss_scale.initial == 4294967296.0);
  CHECK(scaled(R"("initial_scale_power": 127)").precision.loss_scale.initial == std::pow(2.0, 127));
  CHECK(scaled(R"("loss_scale": 0.5)").precision.loss_scale.fixed == 0.5);
  CHECK(scaled(R"("loss_scale": 512)").precision.loss_scale.fixed == 512);
}

TEST_CASE("with a fixed loss scale, notes say that keys of dynamic scaling change nothing") {
  check_note(R"("fp16": {"enabled": true, "loss_scale": 128, "loss_scale_window": 0})",
             "fp16.loss_scale_window: 0 has no effect: loss_scale is fixed at 128");
  check_note(R"("fp16": {"enabled": true, "loss_scale": 1.5, "initial_scale_power": 8})",
             "fp16.initial_scale_power: 8 has no effect: loss_scale is fixed at 1.5");
  check_note(R"("fp16": {"enabled": true, "loss_scale": 128, "hysteresis": 0})",
             "fp16.hysteresis: 0 has no effect: loss_scale is fixed at 128");
  check_note(R"("fp16": {"enabled": true, "loss_scale": 128, "consecutive_hysteresis": true})",
             "fp16.consecutive_hysteresis: true has no effect: loss_scale is fixed at 128");
  check_note(R"("fp16": {"enabled": true, "loss_scale": 128, "min_loss_scale": 70000})",
             "fp16.min_loss_scale: 70000 has no effect: loss_scale is fixed at 128");
  CHECK(
      told(scaled(R"("loss_scale": 128, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2,
                  "consecutive_hysteresis": false, "min_loss_scale": 1)"))
          .empty());
}

TEST_CASE("settings with which a dynamic loss scale cannot work are refused") {
  const std::string counts = "an integer of at least 1 with dynamic loss scaling";
  const std::string remedy = "write a larger number, or a loss_scale above 0";
  const std::string usual = "write such a number, or leave the key out";
  const std::string lower = "lower it, or raise initial_scale_power";
  check_refused_exactly({
      {R"("fp16": {"enabled": true, "loss_scale_window": @0})", "fp16.loss_scale_window", counts, "0",
       remedy},
      {R"("fp16": {"enabled": true, "hysteresis": @0})", "fp16.hysteresis", counts, "0", remedy},
      {R"("fp16": {"min_loss_scale": @0, "enabled": true})", "fp16.min_loss_scale", counts, "0", remedy},
      {R"("fp16": {"enabled": true, "hysteresis": @-1})", "fp16.hysteresis", "an integer of at least 0", "-1",
       usual},
      {R"("fp16": {"enabled": true, "initial_scale_power": @128})", "fp16.initial_scale_power",
       "an integer from 0 to 127", "128", usual},
      {R"("fp16": {"enabled": true, "initial_scale_power": @-1})", "fp16.initial_scale_power",
       "an integer from 0 to 127", "-1", usual},
      {R"("fp16": {"enabled": true, "loss_scale": @-2})", "fp16.loss_scale", "a number from 0 to 1.70141e+38",
       "-2", "write a loss scale such as 128, or 0 for dynamic loss scaling"},
      {R"("fp16": {"enabled": true, "loss_scale": @1e-300})", "fp16.loss_scale",
       "0 or a loss scale of at least 1e-06", "1e-300",
       "write a loss scale such as 128, or 0 for dynamic loss scaling"},
      {R"("fp16": {"enabled": true, "loss_scale": @1e39})", "fp16.loss_scale",
       "a number from 0 to 1.70141e+38", "1e39",
       "write a loss scale such as 128, or 0 for dynamic loss scaling"},
      {R"("fp16": {"enabled": true, "loss_scale": @"128"})", "fp16.loss_scale",
       "a number from 0 to 1.70141e+38", "\"128\"", "write 128 without the quotes"},
      {R"("fp16": {"enabled": true, "min_loss_scale": @257, "initial_scale_power": 8})",
       "fp16.min_loss_scale", "at most 256, the first scale: 2 to the power of initial_scale_power", "257",
       lower},
      {R"("fp16": {"enabled": true, "min_loss_scale": @65537})", "fp16.min_loss_scale",
       "at most 65536, the first scale: 2 to the power of initial_scale_power", "65537", lower},
      {R"("fp16": {"enabled": true, "min_loss_scale": @"2", "initial_scale_power": "0"})",
       "fp16.min_loss_scale", "at most 1, the first scale: 2 to the power of initial_scale_power", "2",
       lower},
  });
  CHECK(scaled(R"("min_loss_scale": 256, "initial_scale_power": 8)").precision.loss_scale.minimum == 256);
  // An invalid value gets one message: no second message compares it with other keys.
  CHECK(refusals(with(R"("fp16": {"enabled": true, "min_loss_scale": 70000, "initial_scale_power": 128})"))
            .size() == 1);
  CHECK(refusals(with(R"("fp16": {"enabled": true, "hysteresis": 0, "loss_scale": -1})")).size() == 1);
}
