#include "tests/engine/restarts_support.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "base/permutation.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kData = 50, kMicroBatch = 3, kMicroSteps = 2;  // as in restarted_program.cpp
constexpr uint64_t kSeed = 5;
const std::string kProgram = ZERORUN_BINARY_DIR "/bin/restarted_program";

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The samples of all ranks in the order in which an optimizer step takes them.
std::vector<int64_t> samples_of(const std::vector<Log>& logs, int64_t steps) {
  std::vector<int64_t> all;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<std::vector<std::string>> words;
    for (const Log& log : logs) {
      std::istringstream stream(log.steps.at(step));
      words.emplace_back(std::istream_iterator<std::string>(stream), std::istream_iterator<std::string>());
    }
    for (int64_t micro_step = 0; micro_step < kMicroSteps; ++micro_step) {
      for (const auto& of_rank : words) {
        for (int64_t place = 0; place < kMicroBatch; ++place)
          all.push_back(
              std::stoll(of_rank.at(static_cast<size_t>(2 + micro_step * (kMicroBatch + 1) + place))));
      }
    }
  }
  return all;
}

}  // namespace

Launched start(const Way& way, int64_t restarts) {
  std::vector<std::string> options = {
      "--num_gpus", "2", "--device", "cpu", "--max_restarts", std::to_string(restarts)};
  if (way.holds) options.insert(options.end(), {"--hold_every", "1"});
  options.insert(options.end(), way.options.begin(), way.options.end());
  return Launched({.options = options,
                   .script = "exec " + kProgram + " $DIR " + std::to_string(way.steps) + " " +
                             std::to_string(way.save_every) + " " + way.stage + " " + way.precision,
                   .environment = {{"OMP_NUM_THREADS", "1"}}});
}

Log read_log(const fs::path& file) {
  Log log;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    if (line.starts_with("#")) {
      std::string hash, what;
      double seconds = 0;
      words >> hash >> what >> seconds;
      log.times[what].push_back(seconds);
      if (what == "read") log.attempts.emplace_back(-1, -1);
      continue;
    }
    int64_t step = -1;
    words >> step;
    auto& [first, last] = log.attempts.back();
    const int64_t expected =
        first < 0 ? std::min<int64_t>(step, static_cast<int64_t>(log.steps.size())) : last + 1;
    CHECK(step == expected);
    if (first < 0) first = step;
    last = step;
    const auto [there, is_new] = log.steps.emplace(step, line);
    CHECK(there->second == line);
  }
  return log;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void await_steps(const Launched& job) {
  const auto count = [&] { return read_log(job.folder() + "/rank0").times["stepped"].size(); };
  const size_t before = count();
  for (int wait = 0; wait < 500 && count() == before; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

std::vector<pid_t> ranks_of(const Launched& job) {
  std::vector<pid_t> ranks;
  for (const Process& process : job.processes()) {
    if (process.name == "restarted_progr") ranks.push_back(process.pid);  // the system cuts names
  }
  return ranks;
}

Calm run_calmly(const Way& way) {
  Launched job = start(way, 0);
  job.create_file("go");
  const Result result = job.finish(120);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  Calm calm{.logs = {}, .end = read_file(job.folder() + "/end.safetensors")};
  for (int rank = 0; rank < kRestartedRanks; ++rank)
    calm.logs.push_back(read_log(job.folder() + "/rank" + std::to_string(rank)));
  return calm;
}

std::vector<Log> check_same(const Launched& job, const Way& way, const Calm& calm) {
  std::vector<Log> logs;
  for (int rank = 0; rank < kRestartedRanks; ++rank) {
    logs.push_back(read_log(job.folder() + "/rank" + std::to_string(rank)));
    CHECK(logs.back().steps == calm.logs[static_cast<size_t>(rank)].steps);
    REQUIRE(logs.back().steps.size() == static_cast<size_t>(way.steps));
  }
  const std::string end = read_file(job.folder() + "/end.safetensors");
  CHECK(end.size() > 1000);
  CHECK(end == calm.end);
  const std::vector<int64_t> samples = samples_of(logs, way.steps);
  REQUIRE(static_cast<int64_t>(samples.size()) == way.steps * kRestartedRanks * kMicroSteps * kMicroBatch);
  for (int64_t number = 0; number < static_cast<int64_t>(samples.size()); ++number)
    REQUIRE(samples[static_cast<size_t>(number)] == shuffled_sample(number, kData, kSeed));
  return logs;
}

void check_repeats(const std::vector<Log>& logs, int64_t save_every) {
  for (const Log& log : logs) {
    int64_t before = -1;
    for (const auto& [first, last] : log.attempts) {
      if (first < 0) continue;
      const bool saved = first <= before && before / save_every > (first - 1) / save_every;
      CHECK((before - first <= 1 || saved));
      before = last;
    }
  }
}

}  // namespace zerorun::testing
