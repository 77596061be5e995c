// Tests that another program's file, given in place of a ds_config.json, is named.
#include <catch2/catch.hpp>
#include <string>

#include "config/check.h"
#include "config/config.h"

namespace zerorun::test {
using namespace config;
namespace {

using Catch::Contains;
using Catch::StartsWith;

// The errors of this text, one after another.
std::string errors_of(const std::string& text) {
  const CheckedConfig checked = check_config(text, "conf");
  std::string all;
  for (const Diagnostic& diagnostic : checked.diagnostics.messages()) {
    if (diagnostic.severity == Severity::error) all += checked.diagnostics.render(diagnostic) + "\n";
  }
  return all;
}

TEST_CASE("files of accelerate, axolotl and transformers are named, with the key that names ours") {
  CHECK_THAT(errors_of("compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n  zero_stage: 2\n"
                       "distributed_type: DEEPSPEED\n"),
             Contains("`accelerate config`") && Contains("deepspeed_config_file"));
  CHECK_THAT(errors_of("base_model: x\nmicro_batch_size: 2\ndeepspeed: zero2.json\n"),
             Contains("axolotl") && Contains("key deepspeed"));
  CHECK_THAT(
      errors_of(R"({"output_dir": "o", "per_device_train_batch_size": 2, "deepspeed": "z.json"})"),
      Contains("expected a ds_config.json, found TrainingArguments of transformers; give the file that their "
               "key deepspeed names"));
  CHECK_THAT(errors_of(R"({"train_batch_size": 2, "output_dir": "o"})"), !Contains("TrainingArguments"));
  // It is the first error, and keys below the top level are no sign of it.
  CHECK_THAT(errors_of("base_model: x\nmicro_batch_size: 2\n"),
             StartsWith("conf:1:1: error: top level: expected a ds_config.json") && !Contains("braces"));
  for (const char* text : {R"({"train_batch_size": 2, "x": {"output_dir": "o", "num_train_epochs": 2}})",
                           R"({"train_batch_size": 2, "x": [{"output_dir": "o"}, {"num_train_epochs": 2}]})",
                           "x:\n  base_model: y\n  micro_batch_size: 2\n"}) {
    CHECK_THAT(errors_of(text), Contains("error") && !Contains("expected a ds_config.json"));
  }
  CHECK(errors_of(R"({"train_batch_size": 2})").empty());
  // A run refuses it as a check does.
  CHECK_THROWS_WITH(parse_config(R"({"output_dir": "o", "num_train_epochs": 2})", "conf", 1),
                    Contains("found TrainingArguments"));
}

TEST_CASE("keys that DeepSpeed got after 0.19.6 are known") {
  for (const char* setting :
       {R"("disable_python_gc": true)", R"("zero_optimization": {"stage": 1, "parameter_alignment": true})",
        R"("compile": {"autoep_non_moe": true})",
        R"("tensor_parallel": {"vocab_parallel_lm_head": true, "vocab_parallel_ce_backend": "liger"})"}) {
    CAPTURE(setting);
    CHECK(errors_of(R"({"train_batch_size": 2, )" + std::string(setting) + "}").empty());
  }
}

TEST_CASE("bytes that are no UTF-8 text are not printed as they are") {
  const std::string shown = errors_of("\xff\xfe{\x00 \x9b[31m");
  CHECK_THAT(shown, Contains("??{") && !Contains("\xff") && !Contains("\x9b"));
}

TEST_CASE("a warm-up that is longer than the schedule is a warning, as with DeepSpeed") {
  for (const char* type : {"WarmupDecayLR", "WarmupCosineLR"}) {
    const auto warnings = [&](const std::string& steps) {
      const CheckedConfig checked = check_config(
          R"({"train_batch_size": 2, "optimizer": {"type": "Adam", "params": {"lr": 0.1}}, "scheduler": {"type": ")" +
              std::string(type) + R"(", "params": {"total_num_steps": 10, "warmup_num_steps": )" + steps +
              "}}}",
          "conf");
      CHECK_FALSE(checked.refused());
      std::string all;
      for (const Diagnostic& diagnostic : checked.diagnostics.messages()) {
        if (diagnostic.severity == Severity::warning) all += diagnostic.text;
      }
      return all;
    };
    CHECK_THAT(warnings("20"), Contains("warmup_num_steps 20 is above total_num_steps 10"));
    CHECK_THAT(warnings("10"), !Contains("is above"));
  }
}

}  // namespace
}  // namespace zerorun::test
