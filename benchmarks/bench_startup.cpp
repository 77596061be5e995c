// bench_startup: measures the time from the command to the end of the first optimizer step. Each round starts
// `zerorun --num_gpus N bench_training` with a tiny GPT-2 and waits for the line that bench_training prints
// after that step.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"
#include "benchmarks/command_line.h"

extern char** environ;

namespace zerorun {
namespace {

using Seconds = std::chrono::duration<double>;

struct Options {
  int ranks = 2;
  int stage = 2;
  int rounds = 9;
  bool json = false;
};

struct Times {
  double first_step = 0;
  double end = 0;
};

std::filesystem::path programs() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

// A temporary config file, removed by the destructor.
class ConfigFile {
 public:
  explicit ConfigFile(int stage) {
    path_ = std::filesystem::temp_directory_path() / ("bench_startup." + std::to_string(getpid()) + ".json");
    const nlohmann::json config{
        {"train_micro_batch_size_per_gpu", 4},
        {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-4}, {"weight_decay", 0.01}}}}},
        {"gradient_clipping", 1.0},
        {"zero_optimization", {{"stage", stage}, {"overlap_comm", true}}}};
    std::ofstream(path_) << config.dump();
  }
  ~ConfigFile() {
    std::error_code gone;
    std::filesystem::remove(path_, gone);
  }
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

pid_t start(const std::vector<std::string>& command, int output) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = -1;
  const int failure = posix_spawn(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) throw Error("cannot start " + command[0] + ": " + std::strerror(failure));
  return child;
}

Times run_once(const Options& options, const ConfigFile& config) {
  const std::string program = (programs() / "bench_training").string();
  const std::vector<std::string> command{(programs() / "zerorun").string(),
                                         "--num_gpus",
                                         std::to_string(options.ranks),
                                         "--device",
                                         "cpu",
                                         program,
                                         "--deepspeed",
                                         config.path(),
                                         "--steps",
                                         "1",
                                         "--layers",
                                         "2",
                                         "--hidden",
                                         "64",
                                         "--heads",
                                         "4",
                                         "--vocab",
                                         "256",
                                         "--seq",
                                         "32"};
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw Error("no pipe");
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = start(command, writing.get());
  writing.reset();
  Times times;
  std::string output;
  std::array<char, 4096> piece{};
  for (ssize_t length = 0; (length = read(reading.get(), piece.data(), piece.size())) > 0;) {
    output.append(piece.data(), static_cast<size_t>(length));
    if (times.first_step == 0 && output.find("first step") != std::string::npos) {
      times.first_step = Seconds(std::chrono::steady_clock::now() - begin).count();
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  times.end = Seconds(std::chrono::steady_clock::now() - begin).count();
  if (status != 0 || times.first_step == 0) throw Error(program + " has failed: start it by hand to see why");
  return times;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

int run(const Options& options) {
  const ConfigFile config(options.stage);
  std::vector<double> first_steps;
  std::vector<double> ends;
  run_once(options, config);  // warms up: loads the programs' files into the page cache
  for (int round = 0; round < options.rounds; ++round) {
    const Times times = run_once(options, config);
    first_steps.push_back(times.first_step);
    ends.push_back(times.end);
  }
  if (options.json) {
    const nlohmann::json result{{"ranks", options.ranks},
                                {"stage", options.stage},
                                {"rounds", options.rounds},
                                {"first_step_s", median(first_steps)},
                                {"end_s", median(ends)}};
    std::printf("%s\n", result.dump(2).c_str());
  } else {
    std::printf("tiny GPT-2, stage %d, %d ranks, medians of %d\n", options.stage, options.ranks,
                options.rounds);
    std::printf("from the command to the end of the first step: %.2f s (%.2f to %.2f)\n", median(first_steps),
                *std::ranges::min_element(first_steps), *std::ranges::max_element(first_steps));
    std::printf("to the end of the run: %.2f s\n", median(ends));
  }
  return 0;
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  zerorun::Options options;
  CLI::App app("Times runs from the command to their first step.", "bench_startup");
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", options.ranks)->check(CLI::Range(1, 64));
  app.add_option("--stage", options.stage)->check(CLI::Range(0, 3));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000));
  app.add_flag("--json", options.json, "print JSON");
  return zerorun::parse_and_run(app, argc, argv, [&] { return zerorun::run(options); });
}
