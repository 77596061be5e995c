// Tests the flags whose values replace "auto" in a ds_config.json, together with the config library that
// reads the file.
#include "samples/common/hyperparameters.h"

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <vector>

#include "config/key_table.h"
#include "samples/common/arguments.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace samples;
using namespace config;
namespace {

using Catch::Matchers::Contains;

Hyperparameters parse(std::vector<std::string> flags) {
  Hyperparameters parsed;
  CLI::App app("a program", "program");
  parsed.add_to(app);
  flags.insert(flags.begin(), "program");
  std::vector<char*> argv;
  for (std::string& flag : flags) argv.push_back(flag.data());
  parse_arguments(app, static_cast<int>(argv.size()), argv.data());
  return parsed;
}

TEST_CASE("flags give the values for \"auto\" in the config") {
  const Hyperparameters flags = parse(
      {"--batch", "3", "--accumulation", "4", "--lr", "0.25", "--weight-decay", "0.5", "--warmup", "6"});
  const Config config =
      parse_config(R"({
      "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
      "gradient_clipping": "auto",
      "optimizer": {"type": "AdamW",
                    "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
      "scheduler": {"type": "WarmupDecayLR",
                    "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
                               "total_num_steps": "auto"}},
      "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}})",
                   "test config", LoadOptions{.world_size = 2, .arguments = flags.arguments(70)});
  CHECK(config.batch.train_batch_size == 24);
  CHECK(config.batch.micro_batch_size_per_gpu == 3);
  CHECK(config.batch.gradient_accumulation_steps == 4);
  CHECK(config.gradient_clipping == 1.0);
  const auto& adam = std::get<AdamConfig>(*config.optimizer);
  CHECK(adam.lr == 0.25);
  CHECK(adam.beta1 == 0.9);
  CHECK(adam.beta2 == 0.999);
  CHECK(adam.eps == 1e-8);
  CHECK(adam.weight_decay == 0.5);
  const WarmupDecayLr schedule{.min_lr = 0.0,
                               .max_lr = 0.25,
                               .warmup = {.num_steps = 6, .type = WarmupType::log},
                               .total_num_steps = 70};
  CHECK(config.scheduler == SchedulerConfig(schedule));
}

TEST_CASE("--precision auto is bf16 where /proc/cpuinfo lists instructions for it") {
  std::ifstream cpuinfo("/proc/cpuinfo");
  const std::string text(std::istreambuf_iterator<char>(cpuinfo), {});
  const bool has_bf16 =
      text.find(" avx512_bf16") != std::string::npos || text.find(" amx_bf16") != std::string::npos;
  const char* const json =
      R"({"train_batch_size": 1, "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}})";
  const auto training = [&](const std::string& precision) {
    return parse_config(json, "test config",
                        LoadOptions{.arguments = parse({"--precision", precision}).arguments(1)})
        .precision.training;
  };
  CHECK(training("auto") == (has_bf16 ? Dtype::bf16 : Dtype::fp32));
  CHECK(training("fp32") == Dtype::fp32);
  CHECK(training("fp16") == Dtype::fp16);
  CHECK_THAT(user_error([&] { parse({"--precision", "fp8"}); }), Contains("--precision"));
}

TEST_CASE("there is a value for every setting that affects training and that only a program can give") {
  const Arguments arguments = Hyperparameters().arguments(0);
  std::vector<std::string> asked_for;
  for (const KeyFact* fact : key_facts()) {
    const bool trains = fact->status == KeyStatus::supported || fact->changes_result;
    if (fact->automatic == Automatic::program && trains) asked_for.emplace_back(fact->path);
  }
  REQUIRE(asked_for.size() > 5);
  for (const std::string& path : asked_for) {
    INFO(path);
    CHECK(arguments.contains(path));
  }
}

TEST_CASE("impossible numbers are refused, and the message names the flag") {
  const std::pair<std::string, std::string> mistakes[] = {
      {"--batch", "0"},  {"--batch", "1.5"}, {"--accumulation", "-1"}, {"--accumulation", "99999999999"},
      {"--lr", "-0.1"},  {"--lr", "inf"},    {"--lr", "much"},         {"--weight-decay", "-1"},
      {"--warmup", "0"},
  };
  for (const auto& [flag, value] : mistakes) {
    INFO(flag << " " << value);
    CHECK_THAT(user_error([&, name = flag, text = value] { parse({name, text}); }), Contains(flag));
  }
}

}  // namespace
}  // namespace zerorun::testing
