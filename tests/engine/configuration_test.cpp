// Tests how initialize() uses a ds_config.json: values for "auto", the resolved configuration in the output
// folder, and the log.
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>

#include "base/error.h"
#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using torch::nn::Linear;

constexpr const char* kAuto = R"({
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": 3,
  "gradient_clipping": "auto",
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
  "zero_optimization": {
    "stage": 3,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto"
  }
})";
constexpr const char* kPlain = R"({"train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
    "zero_optimization": {"stage": 2}, "log_level": "info"})";

Arguments arguments() {
  return {{"train_micro_batch_size_per_gpu", int64_t{5}},
          {"gradient_clipping", 0.25},
          {"optimizer.params.lr", 0.125},
          {"optimizer.params.betas", std::vector<double>{0.5, 0.75}}};
}

// The config of each rank's engine after initialize(), for a model of width 12.
std::vector<Config> initialize_ranks(int world_size, const fs::path& file, const InitializeOptions& options) {
  std::vector<Config> configs(world_size);
  run_ranks(world_size, [&](std::shared_ptr<Communicator> communicator) {
    torch::nn::Sequential model(Linear(30, 12), Linear(12, 4));
    InitializeOptions own = options;
    own.communicator = communicator;
    configs[communicator->rank()] = initialize(*model, file, own).config();
  });
  return configs;
}

// The text that this process writes to standard error while `body` runs.
template <typename Body>
std::string standard_error_of(const fs::path& file, Body body) {
  std::fflush(stderr);
  const int kept = ::dup(STDERR_FILENO);
  const int opened = ::open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  ::dup2(opened, STDERR_FILENO);
  ::close(opened);
  try {
    body();
  } catch (...) {
    ::dup2(kept, STDERR_FILENO);
    ::close(kept);
    throw;
  }
  std::fflush(stderr);
  ::dup2(kept, STDERR_FILENO);
  ::close(kept);
  return read_file(file);
}

}  // namespace

TEST_CASE("\"auto\" gets its value from the program's arguments and from the model's width") {
  const TemporaryFolder folder;
  const fs::path file = folder.write("ds_config.json", kAuto);
  InitializeOptions options;
  options.arguments = arguments();
  for (const Config& config : initialize_ranks(2, file, options)) {
    CHECK(config.batch.micro_batch_size_per_gpu == 5);
    CHECK(config.batch.train_batch_size == 5 * 3 * 2);
    CHECK(config.gradient_clipping == 0.25);
    CHECK(std::get<AdamConfig>(*config.optimizer).lr == 0.125);
    CHECK(std::get<AdamConfig>(*config.optimizer).beta1 == 0.5);
    CHECK(std::get<AdamConfig>(*config.optimizer).beta2 == 0.75);
    CHECK(config.zero.reduce_bucket_size == 12 * 12);
    CHECK(config.zero.prefetch_bucket_size == 129);  // 0.9 x 12 x 12, rounded down
    CHECK(config.zero.param_persistence_threshold == 120);
  }

  options.hidden_size = 7;  // takes precedence over the width that the engine finds
  for (const Config& config : initialize_ranks(2, file, options)) {
    CHECK(config.zero.reduce_bucket_size == 49);
    CHECK(config.zero.param_persistence_threshold == 70);
  }
}

TEST_CASE("initialize() refuses values that stay \"auto\", and names key, line and remedy") {
  const TemporaryFolder folder;
  const fs::path file = folder.write("ds_config.json", kAuto);
  InitializeOptions options;
  options.arguments = arguments();
  options.arguments.erase("optimizer.params.lr");
  options.arguments.erase("gradient_clipping");
  const std::string error = user_error([&] { initialize_ranks(2, file, options); });
  CHECK_THAT(error, Contains("ds_config.json:4:") && Contains("gradient_clipping") &&
                        Contains("arguments[\"gradient_clipping\"]"));
  CHECK_THAT(error, Contains("ds_config.json:5:") && Contains("optimizer.params.lr") &&
                        Contains("arguments[\"optimizer.params.lr\"]"));
  CHECK_THAT(error, !Contains("optimizer.params.betas") && !Contains("bucket_size"));  // these have values
}

TEST_CASE("A model without a width leaves \"auto\" sizes to the program") {
  const TemporaryFolder folder;
  const fs::path file = folder.write("ds_config.json", kAuto);
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Linear model(1, 1);
    InitializeOptions options;
    options.communicator = communicator;
    options.arguments = arguments();
    CHECK_THAT(user_error([&] { initialize(*model, file, options); }),
               Contains("ds_config.json:8:") && Contains("reduce_bucket_size") && Contains("hidden_size"));
    options.hidden_size = 100;
    CHECK(initialize(*model, file, options).config().zero.reduce_bucket_size == 10'000);
  });
}

TEST_CASE("Rank 0 writes the resolved configuration, which is a configuration itself") {
  const TemporaryFolder folder;
  const fs::path file = folder.write("ds_config.json", kAuto);
  const int world_size = GENERATE(1, 3);
  run_ranks(world_size, [&](std::shared_ptr<Communicator> communicator) {
    torch::nn::Sequential model(Linear(30, 12), Linear(12, 4));
    InitializeOptions options;
    options.arguments = arguments();
    options.output_folder = folder / "runs" / ("of rank " + std::to_string(communicator->rank()));
    options.communicator = communicator;
    initialize(*model, file, options);
  });
  std::vector<fs::path> written;
  for (const auto& entry : fs::recursive_directory_iterator(folder / "runs")) written.push_back(entry.path());
  const fs::path resolved = folder / "runs" / "of rank 0" / "ds_config.resolved.json";
  CHECK(written == std::vector<fs::path>{resolved.parent_path(), resolved});

  InitializeOptions none;  // without arguments: all values are in the file
  for (const Config& config : initialize_ranks(world_size, resolved, none)) {
    CHECK(config.batch.train_batch_size == 15 * world_size);
    CHECK(std::get<AdamConfig>(*config.optimizer).lr == 0.125);
    CHECK(std::get<AdamConfig>(*config.optimizer).beta2 == 0.75);
    CHECK(config.zero.stage == 3);
    CHECK(config.zero.reduce_bucket_size == 144);
  }
}

TEST_CASE("If the resolved configuration cannot be written, every rank throws and no rank waits") {
  const TemporaryFolder folder;
  const fs::path file = folder.write("ds_config.json", kPlain);
  const fs::path in_the_way = folder.write("in the way", "text");
  auto initialize_to = [&](const fs::path& output_folder, bool from_code) {
    std::vector<std::string> errors(3);
    run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
      Net model;
      InitializeOptions options;
      options.communicator = communicator;
      if (communicator->rank() == 0) options.output_folder = output_folder;  // only rank 0 writes
      Config config = load_config(file, 3);
      if (from_code) config.resolved.clear();
      errors[communicator->rank()] = user_error([&] { initialize(*model, config, options); });
    });
    CHECK(errors[1] == errors[0]);
    CHECK(errors[2] == errors[0]);
    return errors[0];
  };
  const std::string name = "/ds_config.resolved.json";
  for (const fs::path& output_folder : {in_the_way, in_the_way / "below"}) {
    CHECK_THAT(initialize_to(output_folder, false),
               StartsWith("rank 0: " + output_folder.string() + name) && Contains("output_folder"));
  }
  fs::create_directories(folder / ("taken" + name));
  CHECK_THAT(initialize_to(folder / "taken", false),
             StartsWith("rank 0: " + (folder / "taken").string() + name));
  CHECK(std::distance(fs::directory_iterator(folder / "taken"), {}) == 1);  // no temporary file is left
  CHECK_THAT(initialize_to(folder / "new", true), Contains("load_config"));
  CHECK(initialize_to(folder / "new", false) == "no error");
  CHECK(initialize_to("", true) == "no error");
}

TEST_CASE("initialize() logs notes on the config once, and only if asked") {
  const TemporaryFolder folder;
  const fs::path file = folder.write("ds_config.json", R"({"train_micro_batch_size_per_gpu": 1,
      "optimizer": {"type": "SGD"}, "zero_optimization": {"stage": 1, "contiguous_gradients": false}})");
  const std::vector<std::string> notes = load_config(file, 2).notes;
  REQUIRE(notes.size() > 0);
  InitializeOptions options;
  CHECK(standard_error_of(folder / "stderr", [&] { initialize_ranks(2, file, options); }) == "");
  options.log_config = true;
  const std::string log = standard_error_of(folder / "stderr", [&] { initialize_ranks(2, file, options); });
  for (const std::string& note : notes) {
    CHECK_THAT(log, Contains(note));
    CHECK(log.find(note) == log.rfind(note));
  }
}

TEST_CASE("initialize() always logs once which settings of the config are not supported") {
  const TemporaryFolder folder;
  const fs::path file = folder.write("ds_config.json", kPlain);
  const std::vector<std::string> warnings = load_config(file, 2).warnings;
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], Contains("log_level: \"info\" is not supported"));
  for (const bool asked : {false, true}) {
    InitializeOptions options;
    options.log_config = asked;
    const std::string log = standard_error_of(folder / "stderr", [&] { initialize_ranks(2, file, options); });
    CHECK_THAT(log, Contains(warnings[0]));
    CHECK(log.find("log_level") == log.rfind("log_level"));
  }
}

TEST_CASE("rank 0 logs once that \"Adam\" means AdamW, unless the file has adam_w_mode or \"AdamW\"") {
  const TemporaryFolder folder;
  auto log_of = [&](const std::string& optimizer) {
    const fs::path file =
        folder.write("adam.json", R"({"train_micro_batch_size_per_gpu": 1, "optimizer": )" + optimizer + "}");
    return standard_error_of(folder / "stderr", [&] { initialize_ranks(2, file, {}); });
  };
  const std::string log = log_of(R"({"type": "Adam", "params": {"weight_decay": 0.1}})");
  CHECK_THAT(log, Contains("optimizer \"Adam\" decouples weight decay as AdamW does"));
  CHECK(log.find("AdamW") == log.rfind("AdamW"));
  CHECK(log_of(R"({"type": "Adam", "params": {"adam_w_mode": true}})") == "");
  CHECK(log_of(R"({"type": "Adam", "params": {"adam_w_mode": false}})") == "");
  CHECK(log_of(R"({"type": "AdamW"})") == "");
}

}  // namespace zerorun::testing
