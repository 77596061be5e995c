// Kills random ranks of a training under `zerorun --max_restarts` at random moments. Losses, samples and the
// final weights must be those of a training that nobody disturbs, whether restarts are from checkpoints or
// from generations in memory.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

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

// How a training runs.
struct Way {
  std::string stage = "2", precision = "fp32";
  int64_t save_every = 3;
  bool holds = false;  // generations in memory
  int64_t kills = 12;
};

Launched start(const Way& way, int64_t restarts) {
  std::vector<std::string> options = {
      "--num_gpus", "2", "--device", "cpu", "--max_restarts", std::to_string(restarts)};
  if (way.holds) options.insert(options.end(), {"--hold_every", "1"});
  return Launched({.options = options,
                   .script = "exec " + kProgram + " $DIR " + std::to_string(kSteps) + " " +
                             std::to_string(way.save_every) + " " + way.stage + " " + way.precision,
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

// A training that nobody disturbs.
struct Calm {
  std::vector<Log> logs;
  std::string end;
};

Calm run_calmly(const Way& way) {
  Launched job = start(way, 0);
  job.create_file("go");
  const Result result = job.finish(120);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  Calm calm{.logs = {}, .end = read_file(job.folder() + "/end.safetensors")};
  for (int rank = 0; rank < kRanks; ++rank)
    calm.logs.push_back(read_log(job.folder() + "/rank" + std::to_string(rank)));
  return calm;
}

// Waits until ranks do nothing any more because the last step waits for the test.
void await_last_step(const Launched& job) {
  const auto steps = [&] { return read_log(job.folder() + "/rank0").steps.size(); };
  for (int wait = 0; wait < 1000 && steps() < kSteps - 1; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  REQUIRE(steps() == kSteps - 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the step that was logged ends
}

// Kills a random rank; returns when, in seconds.
double kill_one(Launched& job, std::mt19937_64& random) {
  std::vector<pid_t> ranks = ranks_of(job);
  for (int wait = 0; ranks.empty() && wait < 1000; ++wait) {  // forked, but not running the program yet
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ranks = ranks_of(job);
  }
  REQUIRE_FALSE(ranks.empty());
  const double now = seconds_now();
  ::kill(ranks[random() % ranks.size()], SIGKILL);
  return now;
}

// CHECKs that losses, samples and final weights are those of the calm training. Returns the logs.
std::vector<Log> check_same(const Launched& job, const Calm& calm) {
  std::vector<Log> logs;
  for (int rank = 0; rank < kRanks; ++rank) {
    logs.push_back(read_log(job.folder() + "/rank" + std::to_string(rank)));
    CHECK(logs.back().steps == calm.logs[static_cast<size_t>(rank)].steps);
    REQUIRE(logs.back().steps.size() == kSteps);
  }
  const std::string end = read_file(job.folder() + "/end.safetensors");
  CHECK(end.size() > 1000);
  CHECK(end == calm.end);
  const std::vector<int64_t> samples = samples_of(logs);
  REQUIRE(static_cast<int64_t>(samples.size()) == kSteps * kRanks * kMicroSteps * kMicroBatch);
  for (int64_t number = 0; number < static_cast<int64_t>(samples.size()); ++number)
    REQUIRE(samples[static_cast<size_t>(number)] == shuffled_sample(number, kData, kSeed));
  return logs;
}

// CHECKs that at most one step that had ended was done again after each kill, unless a save was under way. A
// step is logged before it ends, and the next one may have been logged when a rank had not held it yet.
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

// Returns what the launcher wrote.
std::string run_and_kill(const Way& way, const Calm& calm, uint64_t seed) {
  CAPTURE(way.stage, way.precision, way.holds, seed);
  std::mt19937_64 random(seed);
  Launched job = start(way, way.kills);
  const auto began = std::chrono::steady_clock::now();
  std::vector<double> killed_at, until_started;
  for (int64_t kill = 0; kill < way.kills; ++kill) {
    // Of each two kills one is while ranks start, and one after the first step.
    if (kill % 2 == 1) await_steps(job);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 1000));
    killed_at.push_back(kill_one(job, random));
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
  std::vector<Log> logs = check_same(job, calm);
  if (way.holds) check_repeats(logs, way.save_every);

  auto& times = logs[0].times;
  const double ended = mean_after("all ranks ended within ", result.err),
               started = mean_after("started again within ", result.err);
  double total = 0;
  for (const double one : until_started) total += one / static_cast<double>(way.kills);
  std::printf(
      "%d kills in %.1f s; on average found %.3f s, ended %.2f s, started %.2f s, main() %.2f s, "
      "initialize() and read %.2f s, first step %.2f s\n",
      static_cast<int>(way.kills), seconds.count(), total - ended - started, ended, started,
      mean_until(killed_at, times["began"], 5) - total, mean_until(times["began"], times["read"], 5),
      mean_until(times["read"], times["stepped"], 5));
  return result.err;
}

uint64_t seed() {
  return static_cast<uint64_t>(number_in("ZERORUN_SEED", 1));
}

// Flips a bit of the first bytes that rank 0 holds in one of its two memory files of the launcher.
void flip_held_bit(pid_t launcher, int slot) {
  const std::string folder = "/proc/" + std::to_string(launcher) + "/fd";
  std::vector<int> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry.path(), error);
    if (target.starts_with("/memfd:zerorun held state"))
      files.push_back(std::stoi(entry.path().filename().string()));
  }
  std::ranges::sort(files);
  REQUIRE(files.size() == 2 * kRanks);
  const std::string path = folder + "/" + std::to_string(files[static_cast<size_t>(slot)]);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(file >= 0);
  constexpr off_t kPage = 4096, kPlace = 2 * kPage + 100;  // behind the first page and a file's header
  char byte = 0;
  REQUIRE(::pread(file, &byte, 1, kPlace) == 1);
  byte = static_cast<char>(byte ^ 4);
  REQUIRE(::pwrite(file, &byte, 1, kPlace) == 1);
  ::close(file);
}

}  // namespace

TEST_CASE("Trainings whose ranks are killed at any moment end with the bits of an undisturbed one") {
  const Way way{.kills = number_in("ZERORUN_KILLS", 12)};
  run_and_kill(way, run_calmly(way), seed());
}

TEST_CASE("Trainings that go on from memory repeat one step at most, with the bits of an undisturbed one") {
  const std::vector<Way> ways = {
      {.stage = "1"}, {.stage = "3", .precision = "bf16"}, {.stage = "2", .precision = "fp16", .kills = 4}};
  for (Way way : ways) {
    way.save_every = 60;
    const Calm calm = run_calmly(way);
    way.holds = true;
    if (way.kills > 4) way.kills = number_in("ZERORUN_KILLS", way.kills);
    const std::string err = run_and_kill(way, calm, seed());
    CHECK_THAT(err, Contains(" from memory"));
    CHECK_THAT(err, Contains("each rank holds its last two generations in memory"));
  }
}

TEST_CASE("Damage to what is held in memory is found, and a checkpoint restored") {
  Way way;
  const Calm calm = run_calmly(way);
  way.holds = true;
  for (const int flipped : {1, 2}) {  // generations
    CAPTURE(flipped);
    Launched job = start(way, 1);
    await_last_step(job);
    const std::vector<pid_t> ranks = ranks_of(job);
    REQUIRE(ranks.size() == kRanks);
    // Which one is the newest is not known.
    for (int slot = 0; slot < flipped; ++slot) flip_held_bit(job.pid(), slot);
    ::kill(ranks[1], SIGKILL);
    job.wait_for_error("zerorun: restart 1 of 1");
    job.create_file("go");
    const Result result = job.finish(120);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    check_same(job, calm);
    if (flipped == 1) {
      CHECK_THAT(result.err, Contains(" from memory"));
    } else {
      CHECK_THAT(result.err, Contains("a checkpoint is damaged and passed over: rank ") &&
                                 Contains("memory/global_step") && Contains("load_newest(): "));
      CHECK_THAT(result.err, !Contains(" from memory"));
    }
  }
}

}  // namespace zerorun::testing
