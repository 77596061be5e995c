// Runs `zerorun config show|diff` as users do.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/launcher/config_folder.h"

namespace zerorun::testing {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
using nlohmann::json;

TEST_CASE("what show prints is a clean configuration with the same meaning") {
  const ConfigFolder folder;
  folder.write("large.json", R"({
    "train_batch_size": "auto", // follows from the others
    "train_micro_batch_size_per_gpu": 5,
    "fp16": {"enabled": "true", "initial_scale_power": 12, "hysteresis": 3},
    "data_types": {"grad_accum_dtype": "fp16", "master_from_fp32": true},
    "optimizer": {"type": "adam", "params": {"lr": "auto", "betas": [0.8, 0.95], "weight_decay": 3e-7}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 10, "warmup_num_steps": 2}},
    "zero_optimization": {"stage": 3.0, "cpu_offload": false, "reduce_bucket_size": 15099494.4, "overlap_comm": true},
    "gradient_clipping": true,
  })");
  folder.write("brain.json", R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": "true"},
    "communication_data_type": "FP32", "gradient_allreduce_op": "sum", "data_types": {"buffer_dtype": "bf16"}})");
  for (const std::string name : {"clean.json", "warned.json", "large.json", "brain.json"}) {
    for (const std::string options : {"", "--world 6 --model-hidden 768 "}) {
      INFO(name << " " << options);
      const Outcome shown = folder.config("show " + options + name);
      REQUIRE(shown.exit_code == 0);
      folder.write("shown.json", shown.out);
      const Outcome checked = folder.config("check --werror " + options + "shown.json");
      INFO(shown.out << checked.out);
      CHECK(checked.exit_code == 0);
      const Outcome compared = folder.config("diff " + options + name + " shown.json");
      CHECK(compared.exit_code == 0);
      CHECK(compared.out == "no difference in meaning\n");
      CHECK(json::parse(folder.config("diff --json " + options + name + " shown.json").out)
                .at("differences")
                .empty());
    }
  }
}

TEST_CASE("show prints where each value comes from") {
  const std::string out = ConfigFolder().config("show clean.json").out;
  int from_file = 0, defaults = 0;
  for (const std::string& line : lines_of(out)) {
    if (line.find("\"lr\": ") != std::string::npos) CHECK_THAT(line, EndsWith("// line 4"));
    if (line.find("\"stage\": 2") != std::string::npos) CHECK_THAT(line, EndsWith("// line 5"));
    from_file += line.find("// line ") != std::string::npos ? 1 : 0;
    defaults += line.find("// default") != std::string::npos ? 1 : 0;
  }
  CHECK(from_file == 5);
  CHECK(defaults > 10);
}

TEST_CASE("show prints the dtypes, and loss scaling only if training is or could be in fp16") {
  const ConfigFolder folder;
  const auto shown = [&](const std::string& precision) {
    folder.write("precision.json", "{\"train_micro_batch_size_per_gpu\": 2, " + precision + "}");
    return json::parse(folder.config("show precision.json").out, nullptr, true, true);
  };
  const std::string scaling = "\"initial_scale_power\": 10, \"hysteresis\": 3";
  const json on = shown("\"fp16\": {\"enabled\": true, " + scaling + "}");
  CHECK(on.at("communication_data_type") == "fp16");
  CHECK(on.at("data_types").at("grad_accum_dtype") == "fp32");
  CHECK(on.at("fp16") == json{{"enabled", true},
                              {"auto_cast", false},
                              {"loss_scale", 0},
                              {"initial_scale_power", 10},
                              {"loss_scale_window", 1000},
                              {"hysteresis", 3},
                              {"consecutive_hysteresis", false},
                              {"min_loss_scale", 1}});
  CHECK(on.at("bf16") == json{{"enabled", false}});
  const json off = shown("\"fp16\": {\"enabled\": false, " + scaling + "}, \"bf16\": {\"enabled\": true}");
  CHECK(off.at("communication_data_type") == "bf16");
  CHECK(off.at("fp16") == json{{"enabled", false}});
  const json open = shown("\"fp16\": {\"enabled\": \"auto\", " + scaling + "}");
  CHECK(!open.contains("communication_data_type"));
  CHECK(open.at("fp16").at("enabled") == "auto");
  CHECK(open.at("fp16").at("hysteresis") == 3);
}

TEST_CASE("diff prints settings that differ, and ignores spelling, order and written-out defaults") {
  const ConfigFolder folder;
  folder.write("spelled.json", R"({
  // the same as clean.json
  "zero_optimization": {"reduce_bucket_size": 5e8, "stage": 2.0},
  "_note": "any", "gradient_clipping": 1.0,
  "optimizer": {"params": {"lr": 0.0001, "betas": [0.9, 0.999]}, "type": "adamw"},
  "gradient_accumulation_steps": "3", "train_micro_batch_size_per_gpu": 2,
})");
  const Outcome same = folder.config("diff clean.json spelled.json");
  INFO(same.out << same.err);
  CHECK(same.exit_code == 0);
  CHECK(same.out == "no difference in meaning\n");

  folder.write("other.json", R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3,
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-4}}, "zero_optimization": {"stage": 1}})");
  const Outcome different = folder.config("diff clean.json other.json");
  CHECK(different.exit_code == 1);
  CHECK_THAT(different.out,
             Contains("optimizer.params.lr\n  clean.json: 1e-04 (line 4)\n  other.json: 2e-04 (line 2)\n"));
  CHECK_THAT(different.out,
             Contains("zero_optimization.stage\n  clean.json: 2 (line 5)\n  other.json: 1 (line 2)\n"));
  const json differences =
      json::parse(folder.config("diff --json clean.json other.json").out).at("differences");
  REQUIRE(differences.size() == 2);
  CHECK(differences[0] == json{{"path", "optimizer.params.lr"}, {"first", 1e-4}, {"second", 2e-4}});
  CHECK(differences[1] == json{{"path", "zero_optimization.stage"}, {"first", 2}, {"second", 1}});
}

TEST_CASE("show and diff refuse what check refuses, on stderr") {
  const ConfigFolder folder;
  for (const std::string arguments :
       {"show refused.json", "diff clean.json refused.json", "diff refused.json clean.json"}) {
    INFO(arguments);
    const Outcome outcome = folder.config(arguments);
    CHECK(outcome.exit_code == 2);
    CHECK(outcome.out.empty());
    CHECK(headlines(outcome.err, "error").size() == 2);
  }
}

}  // namespace zerorun::testing
