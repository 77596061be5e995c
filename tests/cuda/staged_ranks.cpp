#include "tests/cuda/staged_ranks.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <thread>

#include "base/fnv1a.h"
#include "comm/connect/rendezvous.h"
#include "tests/comm/rank_processes.h"
#include "tests/support/recording_device.h"
#include "tests/support/staged_communicator.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"
#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
namespace fs = std::filesystem;

// The test case of a rank that trains.
constexpr char kTraining[] = "a rank's training";
// Variables that tell a rank's process what to do.
constexpr char kWhere[] = "ZERORUN_TEST_RANK_WHERE";
constexpr char kFolder[] = "ZERORUN_TEST_RANK_FOLDER";

constexpr milliseconds kTimeout = std::chrono::seconds(60);
constexpr std::chrono::seconds kLimit{180};
constexpr int64_t kBucketNumel = 20'000;
constexpr int kDelay = 300;  // in microseconds

std::string result_name(int rank) {
  return "result" + std::to_string(rank);
}

std::string log_name(int rank) {
  return "log" + std::to_string(rank);
}

json to_json(const Run& run) {
  return {{"name", run.name},
          {"config", run.config},
          {"first_step", run.first_step},
          {"steps", run.steps},
          {"infinite_steps", run.infinite_steps},
          {"resume_from", run.resume_from.string()},
          {"save_to", run.save_to.string()},
          {"splits", run.splits}};
}

Run run_from(const json& object) {
  return {.name = object["name"],
          .config = object["config"],
          .first_step = object["first_step"],
          .steps = object["steps"],
          .infinite_steps = object["infinite_steps"],
          .resume_from = object["resume_from"].get<std::string>(),
          .save_to = object["save_to"].get<std::string>(),
          .splits = object["splits"]};
}

json to_json(const Outcome& outcome) {
  return {{"losses", outcome.losses},           {"grad_norms", outcome.grad_norms},
          {"loss_scales", outcome.loss_scales}, {"skipped", outcome.skipped},
          {"parameters", outcome.parameters},   {"violations", outcome.violations}};
}

Outcome outcome_from(const json& object) {
  return {.losses = object["losses"],
          .grad_norms = object["grad_norms"],
          .loss_scales = object["loss_scales"],
          .skipped = object["skipped"],
          .parameters = object["parameters"],
          .violations = object["violations"]};
}

uint64_t hash_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  return fnv1a({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
}

int64_t longest_delay() {
  const char* chosen = std::getenv("ZERORUN_TEST_DELAY");
  return chosen && *chosen ? std::atoll(chosen) : kDelay;
}

// Returns a function that delays half of its calls, for up to longest_delay() microseconds, by `wait`.
std::function<void()> random_delays(int rank, std::function<void(int64_t microseconds)> wait) {
  const int64_t longest = longest_delay();
  if (longest <= 0) return {};
  return [wait = std::move(wait), random = std::mt19937_64(rank), longest]() mutable {
    const auto length = static_cast<int64_t>(random() % (2 * longest));
    if (length < longest) wait(length + 1);
  };
}

const char* name_of(Where where) {
  constexpr const char* kNames[] = {"cpu", "recorded", "gpu"};
  return kNames[static_cast<int>(where)];
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value) FAIL("this test case is run by others only");
  return value;
}

// What a rank trains with.
struct Place {
  std::shared_ptr<Communicator> communicator;
  Recording* recording = nullptr;
};

Place connect_rank() {
  const std::string where = variable(kWhere);
  const std::shared_ptr<Communicator> control = connect_on_cpu();
  if (where == name_of(Where::cpu)) return {control};
  if (where == name_of(Where::gpu)) {
    const auto delays = random_delays(control->rank(), gpu_delay());
    return {std::make_shared<StagedCommunicator>(control, first_gpu(), delays)};
  }
  // The host delays its collectives. The device's own work is complete when it is started.
  const auto delays = random_delays(control->rank(), [](int64_t microseconds) {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  });
  static Recording recording;
  return {std::make_shared<StagedCommunicator>(control, make_recording_device(recording), delays),
          &recording};
}

Outcome train(const Run& run, const Place& place) {
  const std::shared_ptr<Communicator>& communicator = place.communicator;
  RunOptions options{.world_size = communicator->world_size(),
                     .steps = run.steps,
                     .bucket_numel = kBucketNumel,
                     .group_weight_decay = {}};
  options.inject_inf_steps = run.infinite_steps;
  options.resume_from = run.resume_from;
  options.first_step = run.first_step;
  options.splits = run.splits;
  if (!run.save_to.empty())
    options.after_training = [&](Engine& engine) { engine.save_checkpoint(run.save_to); };
  RunResult result;
  result.losses.resize(run.steps, std::vector<std::vector<double>>(communicator->world_size()));
  train_rank(run.config, options, communicator, result);

  Outcome outcome{
      .losses = result.losses, .grad_norms = result.grad_norms, .loss_scales = result.loss_scales};
  if (!result.skipped.empty()) outcome.skipped = result.skipped.back();
  for (const auto& [name, values] : result.parameters) outcome.parameters[name] = hash_of(values);
  if (place.recording) outcome.violations = place.recording->checker.violations();
  return outcome;
}

// Turns the process that run_processes() has forked into a new process of this program.
std::string become_rank(const std::string& name, Where where, int rank, int ranks, int port,
                        const fs::path& folder) {
  set_rank_variables(rank, ranks, port, kTimeout);
  setenv("ZERORUN_DEVICE", where == Where::gpu ? "cuda" : "cpu", 1);
  // Without this setting some operators of LibTorch give other bits in every run on a GPU.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
  setenv(kWhere, name_of(where), 1);
  setenv(kFolder, folder.c_str(), 1);
  const int log = open((folder / log_name(rank)).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  const std::string program = fs::read_symlink("/proc/self/exe");
  execl(program.c_str(), program.c_str(), name.c_str(), nullptr);
  throw std::runtime_error("cannot start " + program);
}

// Combines what all ranks have written: each has its own losses and violations, and rank 0 all else.
Outcomes read_results(const fs::path& folder, int ranks) {
  Outcomes outcomes;
  for (int rank = 0; rank < ranks; ++rank) {
    const json results = json::from_cbor(read_file(folder / result_name(rank)));
    for (const auto& [name, object] : results.items()) {
      const Outcome mine = outcome_from(object);
      if (rank == 0) {
        outcomes[name] = mine;
        continue;
      }
      Outcome& all = outcomes.at(name);
      for (size_t step = 0; step < mine.losses.size(); ++step)
        all.losses[step][rank] = mine.losses[step][rank];
      all.violations.insert(all.violations.end(), mine.violations.begin(), mine.violations.end());
    }
  }
  return outcomes;
}

}  // namespace

TEST_CASE(kTraining, "[.]") {
  const fs::path folder = folder_of_rank();
  at::set_num_threads(1);
  const Place place = connect_rank();
  if (variable(kWhere) == name_of(Where::gpu)) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  json results = json::object();
  for (const json& object : json::parse(read_file(folder / "runs"))) {
    const Run run = run_from(object);
    INFO(run.name);
    results[run.name] = to_json(train(run, place));
  }
  // Not as text: JSON has no infinities and no NaN.
  std::ofstream file(folder / result_name(place.communicator->rank()), std::ios::binary);
  json::to_cbor(results, file);
}

void run_on_ranks(const std::string& name, Where where, int ranks, const fs::path& folder) {
  const int port = free_port();
  const std::vector<Ending> endings = run_processes(
      ranks, [&](int rank) { return become_rank(name, where, rank, ranks, port, folder); }, -1, kLimit);
  for (int rank = 0; rank < ranks; ++rank) {
    INFO("rank " << rank << " of " << ranks << " " << endings[rank].text << "\n"
                 << read_file(folder / log_name(rank)));
    REQUIRE(endings[rank].status == 0);
  }
}

fs::path folder_of_rank() {
  return variable(kFolder);
}

std::shared_ptr<Communicator> connect_on_cpu() {
  Environment environment = Environment::read();
  environment.device = DeviceChoice::cpu;
  return connect(environment);
}

std::shared_ptr<Device> first_gpu() {
  Environment alone;  // a job of one rank
  alone.device = DeviceChoice::cuda;
  const std::shared_ptr<Communicator> owner = connect(alone);
  return {owner, &owner->device()};
}

std::function<void(int64_t)> gpu_delay() {
  const fs::path library = binary_folder().parent_path() / "lib" / "libgpu_ranks_test_body.so";
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* function = handle ? dlsym(handle, "zerorun_delay_stream") : nullptr;
  if (!function) throw std::runtime_error(std::string("delays on the GPU: ") + dlerror());
  return reinterpret_cast<void (*)(int64_t)>(function);
}

double Outcome::mean_loss(size_t step) const {
  double sum = 0;
  size_t count = 0;
  for (const auto& rank : losses.at(step)) {
    for (const double loss : rank) sum += loss;
    count += rank.size();
  }
  return sum / static_cast<double>(count);
}

Outcomes train_in_processes(Where where, int ranks, const std::vector<Run>& runs) {
  const TemporaryFolder folder;
  json list = json::array();
  for (const Run& run : runs) list.push_back(to_json(run));
  folder.write("runs", list.dump());
  run_on_ranks(kTraining, where, ranks, folder / "");
  return read_results(folder / "", ranks);
}

void check_same_bits(const Outcome& a, const Outcome& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.grad_norms == b.grad_norms);
  CHECK(a.loss_scales == b.loss_scales);
  CHECK(a.skipped == b.skipped);
  CHECK(!a.parameters.empty());
  CHECK(a.parameters == b.parameters);
}

void check_groups_are(const Outcome& grouped, const Outcome& alone) {
  Outcome twice = alone;
  for (auto& ranks : twice.losses) {  // ranks of one data coordinate are neighbours
    for (size_t rank = ranks.size(); rank-- > 0;) ranks.insert(ranks.begin() + rank, ranks[rank]);
  }
  check_same_bits(grouped, twice);
}

std::string config_of(int stage, const std::string& precision, int accumulation, const std::string& more) {
  std::string section;
  if (precision == "bf16") section = R"("bf16": {"enabled": true},)";
  if (precision == "bf16 states") {
    section = R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
        "bf16_optimizer_states": true}, "zerorun": {"stochastic_rounding": true},)";
  }
  if (precision == "fp16") {
    section =
        R"("fp16": {"enabled": true, "initial_scale_power": 12, "loss_scale_window": 2, "hysteresis": 1},)";
  }
  return R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )" +
         std::to_string(accumulation) +
         R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "weight_decay": 0.1}},
      "gradient_clipping": 1.0, )" +
         section + R"("zero_optimization": {"overlap_comm": true, "stage": )" + std::to_string(stage) +
         R"(, "stage3_param_persistence_threshold": 100, "stage3_max_live_parameters": 60000,
      "stage3_prefetch_bucket_size": 30000, "stage3_max_reuse_distance": 0)" +
         more + "}}";
}

std::vector<Run> all_stages(const std::string& prefix, const std::string& precision, int accumulation) {
  std::vector<Run> runs;
  const auto add = [&](int stage, const std::string& what, const std::string& more) {
    runs.push_back({.name = prefix + "stage " + std::to_string(stage) + what,
                    .config = config_of(stage, precision, accumulation, more),
                    .same_as = prefix + (accumulation > 1 && stage >= 2 ? "stage 2" : "stage 0")});
  };
  for (const int stage : {0, 1, 2, 3}) add(stage, "", "");
  const std::string on_host = R"(, "offload_optimizer": {"device": "cpu"})";
  for (const int stage : {1, 2, 3}) add(stage, ", updates on the host", on_host);
  add(3, ", updates and parameters on the host", on_host + R"(, "offload_param": {"device": "cpu"})");
  return runs;
}

std::vector<Run> in_two_groups(std::vector<Run> runs) {
  for (Run& run : runs) run.config.insert(1, R"("zerorun": {"mesh": {"tensor": 2}}, )");
  return runs;
}

std::vector<Run> divided_in_two(std::vector<Run> runs) {
  runs.resize(4);  // the others update on the host, which tied layers exclude
  for (Run& run : runs) run.config.insert(1, R"("zerorun": {"mesh": {"pipeline": 2}}, )");
  return runs;
}

std::vector<Run> split_in_two(std::vector<Run> runs) {
  runs = in_two_groups(std::move(runs));
  for (Run& run : runs) run.splits = true;
  return runs;
}

std::vector<Run> continued_runs(const fs::path& folder) {
  const auto run = [&](const std::string& name, int stage, int64_t steps) {
    return Run{.name = name,
               .config = config_of(stage, "bf16", 1),
               .first_step = 4,
               .steps = steps,
               .resume_from = folder};
  };
  return {run("loaded", 3, 4), run("stage 1", 1, 7), run("stage 3", 3, 7)};
}

}  // namespace zerorun::testing
