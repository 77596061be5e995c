// Tests the dtypes of training and of gradients, and how gradients are averaged.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "config/check.h"
#include "tests/config/refusal.h"

using namespace zerorun;
using namespace zerorun::config;
using namespace zerorun::test;
using Catch::Matchers::Contains;

namespace {

const std::string fp16 = R"("fp16": {"enabled": true})";
const std::string bf16 = R"("bf16": {"enabled": true})";

Config parse(const std::string& settings) {
  return parse_config(with(settings), "conf", 1);
}

PrecisionConfig precision(const std::string& settings) {
  return parse(settings).precision;
}

Config with_arguments(const std::string& settings, const Arguments& arguments) {
  return parse_config(with(settings), "conf", LoadOptions{.arguments = arguments});
}

std::string types(const std::string& keys) {
  return R"("data_types": {)" + keys + "}";
}

}  // namespace

TEST_CASE("without fp16 and bf16 training is in fp32 throughout") {
  for (const std::string settings : {"", R"("fp16": {}, "bf16": {}, "data_types": {})",
                                     R"("fp16": {"enabled": false}, "bf16": {"enabled": false})"}) {
    INFO(settings);
    const Config config = parse(settings);
    CHECK(told(config).empty());
    CHECK(config.precision.training == Dtype::fp32);
    CHECK(config.precision.communication == Dtype::fp32);
    CHECK(config.precision.accumulation == Dtype::fp32);
    CHECK(!config.precision.buffers);
    CHECK(!config.precision.master_from_fp32);
    CHECK(!config.precision.auto_cast);
  }
}

TEST_CASE("by default 16-bit gradients are sent in the dtype of training and accumulated in fp32") {
  for (const auto& [settings, dtype] : {std::pair(fp16, Dtype::fp16), std::pair(bf16, Dtype::bf16)}) {
    const Config config = parse(settings);
    CHECK(told(config).empty());
    CHECK(config.precision.training == dtype);
    CHECK(config.precision.communication == dtype);
    CHECK(config.precision.accumulation == Dtype::fp32);
    CHECK(!config.precision.buffers);
  }
}

TEST_CASE("keys of the fp16 section have no effect while it is off") {
  const std::string keys =
      R"("auto_cast": true, "loss_scale_window": 0, "hysteresis": 0, "min_loss_scale": 99999,
                              "fp16_master_weights_and_grads": true)";
  for (const std::string& settings :
       {R"("fp16": {)" + keys + "}", R"("fp16": {"enabled": false, )" + keys + "}",
        R"("fp16": {"enabled": false, )" + keys + "}, " + bf16}) {
    INFO(settings);
    const Config config = parse(settings);
    // Without "enabled" there is one message, which says that fp16 is off.
    CHECK(told(config).size() == (settings.find("enabled") == std::string::npos ? 1 : 0));
    CHECK(!config.precision.auto_cast);
    CHECK(config.precision.loss_scale.window == 1000);
    CHECK(config.precision.loss_scale.hysteresis == 2);
    CHECK(config.precision.loss_scale.minimum == 1);
    CHECK(config.resolved.find("loss_scale") == std::string::npos);
    CHECK(config.resolved.find("fp16_master") == std::string::npos);
  }
  check_refused_exactly({{R"("fp16": {"enabled": false, "hysteresis": @"x"})", "fp16.hysteresis",
                          "an integer of at least 0", "\"x\"", "write such a number, or leave the key out"}});
}

TEST_CASE("fp16 and bf16 may not be on together, under either name of bf16") {
  const std::string remedy = "set one of the two to false";
  check_refused_exactly({
      {R"("fp16": {"enabled": true}, "bf16": {"enabled": @true})", "bf16.enabled", "one of fp16 and bf16",
       "both", remedy},
      {R"("bfloat16": {"enabled": @true}, "fp16": {"enabled": true})", "bfloat16.enabled",
       "one of fp16 and bf16", "both", remedy},
      {R"("bf16": {"enabled": @true}, "fp16": {"enabled": true}, "data_types": {"param_dtype": "fp32"})",
       "bf16.enabled", "one of fp16 and bf16", "both", remedy},
  });
}

TEST_CASE("bfloat16 is understood as bf16, with a warning for each of its names") {
  const Config config = parse(R"("bfloat16": {"enabled": true})");
  CHECK(config.precision.training == Dtype::bf16);
  REQUIRE(told(config).size() == 2);
  CHECK(told(config)[0] == "conf:2:1: warning: bfloat16: old name of bf16");
  CHECK(told(config)[1] == "conf:2:14: warning: bfloat16.enabled: old name of bf16.enabled");
}

TEST_CASE("the program decides what \"auto\" means for fp16 and bf16") {
  const std::string both = R"("fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"})";
  const Arguments half = {{"fp16.enabled", true}, {"bf16.enabled", false}};
  const Arguments brain = {{"fp16.enabled", false}, {"bf16.enabled", true}};
  CHECK(with_arguments(both, half).precision.training == Dtype::fp16);
  CHECK(with_arguments(both, half).precision.communication == Dtype::fp16);
  CHECK(with_arguments(both, brain).precision.training == Dtype::bf16);
  CHECK(with_arguments(both, {{"fp16.enabled", false}, {"bf16.enabled", false}}).precision.training ==
        Dtype::fp32);
  CHECK_THROWS_WITH(
      with_arguments(both, {{"fp16.enabled", true}, {"bf16.enabled", true}}),
      Catch::Contains("conf:2:50: error: bf16.enabled: expected one of fp16 and bf16, found both"));

  const auto open = refusals(with(both));
  REQUIRE(open.size() == 2);
  CHECK(open[0].place() == "2:21 fp16.enabled");
  CHECK(open[0].found == "\"auto\" without a value");
  CHECK(open[1].place() == "2:50 bf16.enabled");
  CHECK_THAT(open[1].remedy, Catch::Contains("options.arguments[\"bf16.enabled\"]"));

  // While the training dtype is unknown, keys that depend on it are not refused. The default of
  // communication_data_type depends on it too, and is not shown.
  const CheckedConfig checked =
      check_config(with(both + ", " + types(R"("param_dtype": "fp16", "grad_accum_dtype": "bf16")")), "conf");
  CHECK(!checked.refused());
  CHECK(show_settings(checked.settings).find("communication_data_type") == std::string::npos);
  CHECK(show_settings(checked.settings).find("loss_scale_window") != std::string::npos);
  const CheckedConfig known = check_config(
      with(R"("fp16": {"enabled": "auto"}, )" + bf16 + ", " + types(R"("param_dtype": "fp16")")), "conf");
  CHECK(known.refused());
}

TEST_CASE("a section that the program switches off has no effect either") {
  const std::string settings =
      R"("fp16": {"enabled": "auto", "fp16_master_weights_and_grads": true, "hysteresis": 0},
      "bf16": {"enabled": "auto", "check_grad_overflow": false})";
  const Config config = with_arguments(settings, {{"fp16.enabled", false}, {"bf16.enabled", false}});
  CHECK(told(config).size() == 1);  // the note on the value of "auto"
  CHECK_THROWS_WITH(with_arguments(settings, {{"fp16.enabled", true}, {"bf16.enabled", false}}),
                    Catch::Contains("fp16.fp16_master_weights_and_grads: expected false, found true") &&
                        Catch::Contains("fp16.hysteresis: expected an integer of at least 1"));
}

TEST_CASE("gradients can be sent in any of the three dtypes, for every dtype of training") {
  for (const std::string& training : {std::string(R"("fp16": {})"), fp16, bf16}) {
    for (const auto& [name, dtype] : {std::pair("fp32", Dtype::fp32),
                                      {"fp16", Dtype::fp16},
                                      {"bf16", Dtype::bf16},
                                      {"BF16", Dtype::bf16}}) {
      const Config config = parse(training + R"(, "communication_data_type": ")" + name + "\"");
      CHECK(config.precision.communication == dtype);
      CHECK(told(config).empty());
    }
  }
  CHECK(precision(bf16 + R"(, "communication_data_type": null)").communication == Dtype::bf16);
  check_refused_exactly({{R"("communication_data_type": @"float16")", "communication_data_type",
                          "fp32 or fp16 or bf16", "\"float16\"", "write one of them, or leave the key out"},
                         {R"("communication_data_type": @16)", "communication_data_type",
                          "fp32 or fp16 or bf16", "16", "write one of them, or leave the key out"}});
}

TEST_CASE("gradients are accumulated in fp32 or in the dtype of training") {
  CHECK(precision(fp16 + ", " + types(R"("grad_accum_dtype": "fp16")")).accumulation == Dtype::fp16);
  CHECK(precision(bf16 + ", " + types(R"("grad_accum_dtype": "bf16")")).accumulation == Dtype::bf16);
  CHECK(precision(bf16 + ", " + types(R"("grad_accum_dtype": "fp32")")).accumulation == Dtype::fp32);
  CHECK(precision(bf16 + ", " + types(R"("grad_accum_dtype": null)")).accumulation == Dtype::fp32);
  CHECK(precision(types(R"("grad_accum_dtype": "fp32")")).accumulation == Dtype::fp32);
  const std::string bf16_instead = R"(leave the key out for fp32, or train with "bf16": {"enabled": true})";
  const std::string fp16_instead = R"(leave the key out for fp32, or train with "fp16": {"enabled": true})";
  check_refused_exactly({
      {R"("fp16": {"enabled": true}, "data_types": {"grad_accum_dtype": @"bf16"})",
       "data_types.grad_accum_dtype", "fp32 or fp16, as fp16.enabled is true", "\"bf16\"", bf16_instead},
      {R"("bfloat16": {"enabled": true}, "data_types": {"grad_accum_dtype": @"fp16"})",
       "data_types.grad_accum_dtype", "fp32 or bf16, as bfloat16.enabled is true", "\"fp16\"", fp16_instead},
      {R"("data_types": {"grad_accum_dtype": @"bf16"}, "bf16": {"enabled": false})",
       "data_types.grad_accum_dtype", "fp32, as neither fp16 nor bf16 is on", "\"bf16\"", bf16_instead},
  });
}

TEST_CASE("param_dtype must be the dtype of training") {
  CHECK(precision(fp16 + ", " + types(R"("param_dtype": "fp16")")).training == Dtype::fp16);
  CHECK(precision(bf16 + ", " + types(R"("param_dtype": "bf16")")).training == Dtype::bf16);
  CHECK(precision(types(R"("param_dtype": "fp32")")).training == Dtype::fp32);
  CHECK(precision(bf16 + ", " + types(R"("param_dtype": null)")).training == Dtype::bf16);
  check_refused_exactly({
      {R"("data_types": {"param_dtype": @"bf16"})", "data_types.param_dtype",
       "fp32, as neither fp16 nor bf16 is on", "\"bf16\"",
       R"(leave the key out, or train with "bf16": {"enabled": true})"},
      {R"("fp16": {"enabled": true}, "data_types": {"param_dtype": @"bf16"})", "data_types.param_dtype",
       "fp16, as fp16.enabled is true", "\"bf16\"",
       R"(leave the key out, or train with "bf16": {"enabled": true})"},
      {R"("bf16": {"enabled": true}, "data_types": {"param_dtype": @"fp32"})", "data_types.param_dtype",
       "bf16, as bf16.enabled is true", "\"fp32\"", "leave the key out, or switch fp16 and bf16 off"},
  });
  // An fp16 section that is not an object gets one message. Keys that depend on it are not checked.
  CHECK(refusals(with(R"("fp16": true, "data_types": {"param_dtype": "fp16"})")).size() == 1);
}

TEST_CASE("buffers are converted to buffer_dtype in every precision") {
  for (const std::string& training : {std::string(R"("fp16": {})"), fp16, bf16}) {
    CHECK(precision(training + ", " + types(R"("buffer_dtype": "fp32")")).buffers == Dtype::fp32);
    CHECK(precision(training + ", " + types(R"("buffer_dtype": "bf16")")).buffers == Dtype::bf16);
    CHECK(!precision(training + ", " + types(R"("buffer_dtype": null)")).buffers);
  }
}

TEST_CASE("master weights may start from unrounded values if parameters are in 16 bits") {
  const Config config = parse(bf16 + ", " + types(R"("master_from_fp32": true)"));
  CHECK(config.precision.master_from_fp32);
  CHECK(told(config).empty());
  CHECK(!precision(bf16 + ", " + types(R"("master_from_fp32": false)")).master_from_fp32);
  check_note(types(R"("master_from_fp32": true)"),
             "data_types.master_from_fp32: true has no effect: training is in fp32");
}

TEST_CASE("fp16 master weights are refused if the config asks for them") {
  const std::string before = R"("fp16": {"enabled": true, "fp16_master_weights_and_grads": )";
  const auto refused = refusals(with(before + "true}"));
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].place() ==
        "2:" + std::to_string(before.size() + 1) + " fp16.fp16_master_weights_and_grads");
  CHECK(refused[0].expected == "false");
  CHECK(refused[0].found == "true, which ZeroRun does not support");
  CHECK(refused[0].remedy ==
        "updates of fp16 weights underflow, and only bf16 has bf16_master_weights_and_grads: remove it");
  CHECK(told(parse(before + "false}")).empty());
}

TEST_CASE("notes say that the keys about sums and checks of bf16 gradients change nothing") {
  check_note(R"("bf16": {"enabled": true, "immediate_grad_update": true})",
             "bf16.immediate_grad_update: true has no effect: gradients are always added as soon as they are "
             "computed");
  check_note(R"("bf16": {"enabled": true, "check_grad_overflow": false})",
             "bf16.check_grad_overflow: false has no effect: gradients are always checked, and a step whose "
             "gradients are not finite is skipped");
  CHECK(
      told(parse(R"("bf16": {"enabled": true, "immediate_grad_update": false, "check_grad_overflow": true})"))
          .empty());
}

TEST_CASE("amp and autocast are refused, and the message says what to write instead") {
  const auto amp = refusals(with(R"("amp": {"enabled": true})"));
  REQUIRE(amp.size() == 1);
  CHECK(amp[0].path == "amp");
  CHECK(
      amp[0].remedy ==
      R"(apex is a Python package (removed from DeepSpeed after 0.19.6): write "bf16": {"enabled": true} or "fp16": {"enabled": true} instead)");
  CHECK(
      told(
          parse(
              R"("amp": {"enabled": false, "opt_level": "O1"}, "torch_autocast": {"enabled": false, "dtype": "bfloat16"})"))
          .empty());
}

TEST_CASE("gradients are averaged or summed, at every stage") {
  for (const char* stage : {"0", "1", "2", "3"}) {
    const std::string zero = std::string(R"("zero_optimization": {"stage": )") + stage + "}, ";
    CHECK(parse(zero + R"("gradient_allreduce_op": "mean")").average_gradients);
    for (const char* op : {"sum", "SUM"}) {
      const Config config = parse(zero + R"("gradient_allreduce_op": ")" + op + "\"");
      CHECK(!config.average_gradients);
      CHECK(told(config).empty());
    }
  }
  check_refused_exactly({{R"("gradient_allreduce_op": @"max")", "gradient_allreduce_op", "mean or sum",
                          "\"max\"", "write one of them, or leave the key out"}});
}

TEST_CASE("keys that divide before the average are refused with a sum, and two of them give one note") {
  check_refused_exactly({
      {R"("gradient_allreduce_op": "sum", "prescale_gradients": @true)", "prescale_gradients",
       R"(false beside "gradient_allreduce_op": "sum")", "true",
       "remove one of the two: gradients divided by the number of ranks make an average"},
      {R"("gradient_predivide_factor": @2.0, "gradient_allreduce_op": "sum")", "gradient_predivide_factor",
       R"(1 beside "gradient_allreduce_op": "sum")", "2",
       "remove one of the two: it is a part of the division that makes an average"},
  });
  CHECK(
      told(
          parse(
              R"("gradient_allreduce_op": "sum", "prescale_gradients": false, "gradient_predivide_factor": 1.0)"))
          .empty());
  check_note(R"("prescale_gradients": true, "gradient_predivide_factor": 4)",
             "gradient_predivide_factor: 4 has no effect: with prescale_gradients the whole division comes "
             "before the sum");
  CHECK(told(parse(R"("prescale_gradients": true, "gradient_predivide_factor": 1)")).empty());
  CHECK(told(parse(R"("gradient_predivide_factor": 4)")).empty());
}

TEST_CASE("the resolved configuration has the dtypes, and loss scaling with fp16") {
  const std::string half = parse(fp16).resolved;
  CHECK_THAT(half, Catch::Contains("\"communication_data_type\": \"fp16\"") &&
                       Catch::Contains("// follows from the others") &&
                       Catch::Contains("\"grad_accum_dtype\": \"fp32\"") &&
                       Catch::Contains("\"min_loss_scale\": 1"));
  const std::string brain = parse(bf16).resolved;
  CHECK_THAT(brain, Catch::Contains("\"communication_data_type\": \"bf16\""));
  CHECK(brain.find("loss_scale") == std::string::npos);
  CHECK(brain.find("auto_cast") == std::string::npos);
  for (const std::string& shown : {half, brain}) {
    const Config again = parse_config(shown, "conf", 1);
    CHECK(told(again).empty());
    CHECK(again.precision.training == (shown == half ? Dtype::fp16 : Dtype::bf16));
    CHECK(again.precision.communication == again.precision.training);
  }
}
