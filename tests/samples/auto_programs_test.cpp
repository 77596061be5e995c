// Runs the sample programs with configurations that say "auto", and reads the resolved ones.
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "checkpoint/file_system.h"
#include "tests/samples/programs_support.h"

namespace zerorun::testing {
using namespace checkpoint;

using Catch::Matchers::Contains;

// Writes the config of auto_stage2.json or auto_stage3.json, with each "auto" replaced by its value for two
// ranks and kAutoFlags.
std::string write_written_out(const TemporaryFolder& folder, int stage) {
  const std::string schedule = stage == 3 ? R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 6, )"
                                          : R"({"type": "WarmupLR", "params": {)";
  return folder.write("written_out.json", R"({
    "optimizer": {"type": "AdamW",
                  "params": {"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.05}},
    "scheduler": )" + schedule + R"("warmup_min_lr": 0, "warmup_max_lr": 0.01, "warmup_num_steps": 2}},
    "zero_optimization": {"stage": )" + std::to_string(stage) +
                                              R"(, "overlap_comm": true, "reduce_bucket_size": 256,
                          "stage3_prefetch_bucket_size": 230, "stage3_param_persistence_threshold": 160},
    "gradient_accumulation_steps": 2, "gradient_clipping": 1.0, "steps_per_print": 2000,
    "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2})");
}
const std::string kAutoFlags = " --batch 2 --accumulation 2 --lr 0.01 --weight-decay 0.05 --warmup 2 ";

TEST_CASE("a file that says \"auto\" everywhere trains like the same file with its values written out") {
  const int stage = GENERATE(2, 3);
  CAPTURE(stage);
  const TemporaryFolder folder;
  const std::string automatic =
      ZERORUN_SOURCE_DIR "/tests/samples/data/auto_stage" + std::to_string(stage) + ".json";
  const std::string written_out = write_written_out(folder, stage);
  const std::string csv = folder / "log.csv", resolved = folder / "ds_config.resolved.json";
  auto train = [&](const std::string& config, const std::string& flags) {
    const Outcome outcome =
        run(folder, kBin + "zerorun --num_gpus 2 " + kBin + "gpt2 --deepspeed " + config + " --data " +
                        write_text(folder) + kTiny + "--steps 6 --generate 0 --csv " + csv + flags);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    CHECK_THAT(outcome.err, !Contains(": note: "));  // keys that the config leaves out get no notes
    return read_file(csv);
  };
  const std::string expected = train(written_out, "");
  CHECK(read_csv(csv).size() == 6);
  CHECK(train(automatic, kAutoFlags) == expected);
  CHECK_THAT(read_file(resolved), Contains("\"reduce_bucket_size\": 256"));
  if (stage == 3) {
    CHECK_THAT(read_file(resolved), Contains("\"stage3_prefetch_bucket_size\": 230") &&
                                        Contains("\"stage3_param_persistence_threshold\": 160"));
  }
  // The resolved configuration contains the values of the flags, so it needs no flags.
  std::filesystem::rename(resolved, folder / "kept.json");
  CHECK(train(folder / "kept.json", "") == expected);
  // The rest runs at stage 2 only, to save time. It tests that values in the file take precedence over flags,
  // and that each flag has an effect if the file says "auto".
  if (stage == 3) return;
  CHECK(train(written_out, " --batch 1 --accumulation 1 --lr 1 --weight-decay 1 --warmup 1") == expected);
  for (const char* other :
       {"--batch 1", "--accumulation 1", "--lr 0.02", "--weight-decay 0.5", "--warmup 3"}) {
    INFO(other);
    std::string flags = kAutoFlags;
    const std::string name = std::string(other).substr(0, std::string(other).rfind(' ') + 1);
    const size_t at = flags.find(name);
    flags.replace(at, flags.find(' ', at + name.size()) - at, other);
    CHECK(train(automatic, flags) != expected);
  }
}

TEST_CASE("a file that says \"auto\" everywhere trains with the programs' defaults") {
  const int stage = GENERATE(2, 3);
  const TemporaryFolder folder;
  const std::string config =
      " --deepspeed " ZERORUN_SOURCE_DIR "/tests/samples/data/auto_stage" + std::to_string(stage) + ".json ";
  const std::string two_ranks = kBin + "zerorun --num_gpus 2 " + kBin;
  const Outcome gpt2 =
      run(folder, two_ranks + "gpt2" + config + "--steps 3 --data " + write_text(folder) + kTiny);
  INFO(gpt2.err);
  CHECK(gpt2.exit_code == 0);
  CHECK(count(gpt2.out, "3 steps in") == 1);

  const std::string csv = folder / "log.csv";
  const Outcome mlp = run(folder, two_ranks + "mlp" + config + "--csv " + csv);
  INFO(mlp.err);
  REQUIRE(mlp.exit_code == 0);
  CHECK(read_csv(csv).back().at("loss") < 0.7);
  CHECK_THAT(read_file(folder / "ds_config.resolved.json"),
             Contains("\"reduce_bucket_size\": 16384") &&  // 128 x 128, since the hidden layer has 128 units
                 Contains("\"train_batch_size\": 128"));
}

TEST_CASE("the resolved configuration is beside the saved weights, else beside the csv file, else nowhere") {
  const TemporaryFolder folder;
  const std::filesystem::path saved = folder / "saved", logged = folder / "logged";
  std::filesystem::create_directories(saved);
  std::filesystem::create_directories(logged);
  const std::string name = "ds_config.resolved.json";
  const std::string command = "cd " + logged.string() + " && " + kBin + "gpt2 --deepspeed " +
                              write_config(folder, 2, 1) + " --data " + write_text(folder) + kTiny +
                              "--steps 0 --generate 0 ";
  auto train = [&](const std::string& flags) { REQUIRE(run(folder, command + flags).exit_code == 0); };
  train("");
  CHECK_FALSE(std::filesystem::exists(logged / name));
  train("--csv log.csv --save " + (saved / "weights.safetensors").string());
  CHECK_THAT(read_file(saved / name), Contains("\"train_micro_batch_size_per_gpu\": 2"));
  CHECK_FALSE(std::filesystem::exists(logged / name));
  train("--csv log.csv");
  CHECK(read_file(logged / name) == read_file(saved / name));
}

}  // namespace zerorun::testing
