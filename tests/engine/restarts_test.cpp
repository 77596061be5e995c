// Kills random ranks of a training under `zerorun --max_restarts` at random moments. Losses, samples and the
// final weights must be those of a training that nobody disturbs.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/permutation.h"
#include "tests/launcher/launched.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

constexpr int kRanks = 2;
constexpr int64_t kSteps = 150;
constexpr int64_t kData = 50, kMicroBatch = 3, kMicroSteps = 2;  // as in restarted_program.cpp
constexpr uint64_t kSeed = 5;
const std::string kProgram = ZERORUN_BINARY_DIR "/bin/restarted_program";

int64_t number_in(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoll(text) : otherwise;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Launched start(const std::string& restarts) {
  return Launched({.options = {"--num_gpus", "2", "--device", "cpu", "--max_restarts", restarts},
                   .script = "exec " + kProgram + " $DIR " + std::to_string(kSteps),
                   .environment = {{"OMP_NUM_THREADS", "1"}}});
}

struct Log {
  std::map<int64_t, std::string> steps;               // what a rank wrote of each step
  std::map<std::string, std::vector<double>> times;   // "began", "read", "stepped", by attempt
  std::vector<std::pair<int64_t, int64_t>> attempts;  // first and last step of each
};

// CHECKs that a step that was done again was the same to the bit, and that attempts leave no gap.
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

// The samples of all ranks in the order in which an optimizer step takes them.
std::vector<int64_t> samples_of(const std::vector<Log>& logs) {
  std::vector<int64_t> all;
  for (int64_t step = 0; step < kSteps; ++step) {
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

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Waits until this attempt has done a step, or a little if it does not.
void await_steps(const Launched& job) {
  const auto count = [&] { return read_log(job.folder() + "/rank0").times["stepped"].size(); };
  const size_t before = count();
  for (int wait = 0; wait < 500 && count() == before; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

// What the launcher says after these words in the lines about restarts, in seconds, on average.
double mean_after(const std::string& words, const std::string& text) {
  double sum = 0;
  int lines = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1), ++lines)
    sum += std::atof(text.c_str() + at + words.size());
  return sum / lines;
}

// From each time to the first one of `later` that follows it; those without one are left out.
double mean_until(const std::vector<double>& times, const std::vector<double>& later, double most) {
  double sum = 0;
  int found = 0;
  for (const double time : times) {
    const auto next = std::ranges::find_if(later, [&](double other) { return other >= time; });
    if (next == later.end() || *next - time > most) continue;
    sum += *next - time;
    ++found;
  }
  return sum / found;
}

std::vector<pid_t> ranks_of(const Launched& job) {
  std::vector<pid_t> ranks;
  for (const Process& process : job.processes()) {
    if (process.name == "restarted_progr") ranks.push_back(process.pid);  // the system cuts names
  }
  return ranks;
}

}  // namespace

TEST_CASE("Trainings whose ranks are killed at any moment end with the bits of an undisturbed one") {
  Launched calm = start("0");
  calm.create_file("go");
  const Result undisturbed = calm.finish(120);
  INFO(undisturbed.err);
  REQUIRE(undisturbed.exit_code == 0);

  const int64_t kills = number_in("ZERORUN_KILLS", 12);
  std::mt19937_64 random(static_cast<uint64_t>(number_in("ZERORUN_SEED", 1)));
  Launched job = start(std::to_string(kills));
  const auto began = std::chrono::steady_clock::now();
  std::vector<double> killed_at, until_started;
  for (int64_t kill = 0; kill < kills; ++kill) {
    // Of each two kills one is while ranks start, and one after the first step.
    if (kill % 2 == 1) await_steps(job);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 1000));
    std::vector<pid_t> ranks = ranks_of(job);
    for (int wait = 0; ranks.empty() && wait < 1000; ++wait) {  // forked, but not running the program yet
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      ranks = ranks_of(job);
    }
    REQUIRE_FALSE(ranks.empty());
    killed_at.push_back(seconds_now());
    ::kill(ranks[random() % ranks.size()], SIGKILL);
    job.wait_for_error("zerorun: restart " + std::to_string(kill + 1) + " of ");
    until_started.push_back(seconds_now() - killed_at.back());
  }
  job.create_file("go");
  const Result result = job.finish(120);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  job.wait_until_nothing_is_left();
  CHECK_THAT(result.err, Contains("restart ") && !Contains("damaged"));

  std::vector<Log> logs, expected;
  for (int rank = 0; rank < kRanks; ++rank) {
    logs.push_back(read_log(job.folder() + "/rank" + std::to_string(rank)));
    expected.push_back(read_log(calm.folder() + "/rank" + std::to_string(rank)));
    CHECK(logs.back().steps == expected.back().steps);
    CHECK(logs.back().steps.size() == kSteps);
  }
  const std::string end = read_file(job.folder() + "/end.safetensors");
  CHECK(end.size() > 1000);
  CHECK(end == read_file(calm.folder() + "/end.safetensors"));
  const std::vector<int64_t> samples = samples_of(logs);
  REQUIRE(static_cast<int64_t>(samples.size()) == kSteps * kRanks * kMicroSteps * kMicroBatch);
  for (int64_t number = 0; number < static_cast<int64_t>(samples.size()); ++number)
    REQUIRE(samples[static_cast<size_t>(number)] == shuffled_sample(number, kData, kSeed));

  auto& times = logs[0].times;
  const double ended = mean_after("all ranks ended within ", result.err),
               started = mean_after("started again within ", result.err);
  double total = 0;
  for (const double one : until_started) total += one / static_cast<double>(kills);
  std::printf(
      "%d kills in %.1f s; on average found %.3f s, ended %.2f s, started %.2f s, main() %.2f s, "
      "initialize() and read %.2f s, first step %.2f s\n",
      static_cast<int>(kills), seconds.count(), total - ended - started, ended, started,
      mean_until(killed_at, times["began"], 5) - total, mean_until(times["began"], times["read"], 5),
      mean_until(times["read"], times["stepped"], 5));
}

}  // namespace zerorun::testing
