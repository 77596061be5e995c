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
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/restarts_support.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

int64_t number_in(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoll(text) : otherwise;
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

// Waits until ranks do nothing any more because the last step waits for the test.
void await_last_step(const Launched& job) {
  const auto left = [&] {
    return Way().steps - 1 - static_cast<int64_t>(read_log(job.folder() + "/rank0").steps.size());
  };
  for (int wait = 0; wait < 1000 && left() > 0; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  REQUIRE(left() == 0);
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
  std::vector<Log> logs = check_same(job, way, calm);
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
  REQUIRE(files.size() == 2 * kRestartedRanks);
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
  Way way{.save_every = 60};  // while a save is under way nothing is held
  const Calm calm = run_calmly(way);
  way.holds = true;
  for (const int flipped : {1, 2}) {  // generations
    CAPTURE(flipped);
    Launched job = start(way, 1);
    await_last_step(job);
    const std::vector<pid_t> ranks = ranks_of(job);
    REQUIRE(ranks.size() == kRestartedRanks);
    // Which one is the newest is not known.
    for (int slot = 0; slot < flipped; ++slot) flip_held_bit(job.pid(), slot);
    ::kill(ranks[1], SIGKILL);
    job.wait_for_error("zerorun: restart 1 of 1");
    job.create_file("go");
    const Result result = job.finish(120);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    check_same(job, way, calm);
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
