// Tests in which precision weights and optimizer states are kept: bf16, and 8 bits.
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "config/check.h"
#include "tests/config/refusal.h"

using namespace zerorun;
using namespace zerorun::config;
using namespace zerorun::test;
using Catch::Matchers::Contains;

namespace {

const std::string bf16 = R"("bf16": {"enabled": true})";

Config parse(const std::string& settings) {
  return parse_config(with(settings), "conf", 1);
}

PrecisionConfig precision(const std::string& settings) {
  return parse(settings).precision;
}

std::string types(const std::string& keys) {
  return R"("data_types": {)" + keys + "}";
}

}  // namespace

TEST_CASE("bf16 master weights, optimizer states and stochastic rounding") {
  const std::string master = R"("bf16_master_weights_and_grads": true)";
  const std::string states = R"("bf16_optimizer_states": true)";
  auto bf16_with = [](const std::string& keys) { return R"("bf16": {"enabled": true, )" + keys + "}"; };
  const std::string random = R"("zerorun": {"stochastic_rounding": true, "rounding_seed": 7})";
  PrecisionConfig found = precision(bf16_with(master + ", " + states) + ", " + random);
  CHECK(found.master == Dtype::bf16);
  CHECK(found.moments == Dtype::bf16);
  CHECK(found.accumulation == Dtype::bf16);
  CHECK(found.rounding_seed == 7);
  found = precision(bf16_with(master) + ", " + types(R"("grad_accum_dtype": "fp32")"));
  CHECK(found.master == Dtype::bf16);
  CHECK(found.moments == Dtype::fp32);
  CHECK(found.accumulation == Dtype::fp32);
  CHECK(!found.rounding_seed);
  found = precision(bf16_with(states));
  CHECK(found.master == Dtype::fp32);
  CHECK(found.moments == Dtype::bf16);
  CHECK(found.accumulation == Dtype::fp32);
  check_note(R"("bf16": {"enabled": false, )" + states + "}",
             "bf16.bf16_optimizer_states: true has no effect: bf16.enabled is not true");
  check_note(
      random,
      "zerorun.stochastic_rounding: true has no effect: weights and optimizer states are updated in fp32");
  check_note(
      bf16_with(master) + ", " + types(R"("master_from_fp32": true)"),
      "data_types.master_from_fp32: true has no effect: with bf16_master_weights_and_grads there are no "
      "master weights");
  check_note(bf16 + R"(, "zerorun": {"rounding_seed": 7})",
             "zerorun.rounding_seed: has no effect: zerorun.stochastic_rounding is not true");
}

TEST_CASE("optimizers that cannot update bf16 states are refused, and lost changes are warned of") {
  const std::string states = R"("bf16": {"enabled": true, "bf16_optimizer_states": true})";
  for (const auto& [optimizer, reason] :
       {std::pair(R"("type": "Lamb")", "Lamb, whose step needs whole parameters in fp32"),
        std::pair(R"("type": "Muon")", "Muon, whose step needs whole parameters in fp32"),
        std::pair(R"("type": "RMSprop", "params": {"centered": true})",
                  "RMSprop, whose centered variance is a small difference of two averages")}) {
    const auto refused = refusals(with(states + R"(, "optimizer": {)" + optimizer + "}"));
    REQUIRE(refused.size() == 1);
    CHECK(refused[0].expected == std::string("false with the optimizer ") + reason);
    CHECK(refused[0].remedy == "remove it, or use another optimizer, such as AdamW");
  }
  const std::string adam = R"(, "optimizer": {"type": "AdamW", "params": {"betas": [0.9, )";
  const auto only_message = [](const std::string& settings) {
    const std::vector<std::string> messages = told(parse(settings));
    return messages.size() == 1 ? messages.front() : std::to_string(messages.size()) + " messages";
  };
  CHECK_THAT(only_message(states + adam + "0.999]}}"),
             Contains("exp_avg_sq stops changing with beta2 0.999"));
  CHECK(told(parse(states + adam + "0.95]}}")).empty());
  CHECK(told(parse(states + adam + R"(0.999]}}, "zerorun": {"stochastic_rounding": true})")).empty());
  const std::string many = R"(, "gradient_accumulation_steps": 128)";
  const std::string narrow = R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true})" + many;
  CHECK_THAT(only_message(narrow), Contains("128 gradients are added in bf16"));
  CHECK(told(parse(narrow + ", " + types(R"("grad_accum_dtype": "fp32")"))).empty());
}

TEST_CASE("optimizer states in 8 bits are those of Adam, AdamW and Lion, in memory") {
  const std::string states = R"("zerorun": {"optimizer_states_in_8_bits": true})";
  CHECK(precision(states).moments_in_8_bits);
  CHECK(!precision(bf16).moments_in_8_bits);
  for (const char* type : {"Adam", "AdamW", "Lion"}) {
    const std::string optimizer =
        states + R"(, "optimizer": {"type": ")" + type + R"(", "params": {"betas": )";
    CHECK(told(parse(optimizer + "[0.9, 0.95]}}")).empty());
    const std::vector<std::string> messages = told(parse(optimizer + "[0.9, 0.999]}}"));
    CHECK(messages.size() == (type == std::string("Lion") ? 0 : 1));
    for (const std::string& message : messages)
      CHECK_THAT(message, Contains("with beta2 0.999 a step changes exp_avg_sq by less than"));
  }
  const auto check_refused = [&](const std::string& more, const std::string& expected) {
    const auto refused = refusals(with(states + ", " + more));
    REQUIRE(refused.size() == 1);
    CHECK_THAT(refused[0].place(), Contains("zerorun.optimizer_states_in_8_bits"));
    CHECK(refused[0].expected == expected);
  };
  check_refused(R"("optimizer": {"type": "SGD"})",
                "false with the optimizer SGD, which has no states that can be in 8 bits");
  check_refused(R"("optimizer": {"type": "Lamb"})",
                "false with the optimizer Lamb, which has no states that can be in 8 bits");
  check_refused(R"("optimizer": {"type": "AdamW", "params": {"amsgrad": true}})",
                "false with the optimizer AdamW, whose amsgrad needs the largest squares exactly");
  check_refused(R"("bf16": {"enabled": true, "bf16_optimizer_states": true})",
                "false, as bf16.bf16_optimizer_states is true");
  check_refused(
      R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}})",
      "false with optimizer states in files");
}
