#include "base/program.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/memory_report.h"

namespace zerorun {
namespace {

std::atomic<bool> has_failed = false;
std::atomic<bool> is_to_end = false;
static_assert(std::atomic<bool>::is_always_lock_free, "it is written by a signal handler");

// LibTorch appends its C++ backtrace to what(): the text before it is the message.
std::string without_backtrace(std::string message) {
  for (const char* start : {"\nException raised from", "\nframe #0: "})
    message.resize(std::min(message.find(start), message.size()));
  return message;
}

void tell(const std::string& rank, const std::string& message) {
  std::fflush(stdout);
  std::string prefix = rank.empty() ? "" : "rank " + rank + ": ";
  std::fprintf(stderr, "error: %s%s\n", prefix.c_str(), message.c_str());
  std::fflush(stderr);
}

// Reports an error that all ranks throw. Ranks other than 0 first wait. Usually the launcher ends them
// meanwhile, so only rank 0 reports the error (see run_program()). Rank 0's message has no rank number.
int tell_once(const std::string& rank, const std::string& message, int exit_code) {
  if (!rank.empty() && rank != "0") std::this_thread::sleep_for(std::chrono::seconds(4));
  tell(rank == "0" ? "" : rank, message);
  return exit_code;
}

// A rank may receive one SIGTERM twice, directly and forwarded by the launcher: signals less than a second
// after the first count as the same signal.
void on_termination(int signal) {
  constexpr int64_t kSameTime = 1'000'000'000;  // nanoseconds
  static std::atomic<int64_t> first = 0;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t time = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  int64_t none = 0;
  is_to_end = true;
  if (first.compare_exchange_strong(none, time) || time - first < kSameTime) return;
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

void survive_termination() {
  struct sigaction action {};
  action.sa_handler = on_termination;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
}

bool termination_requested() {
  return is_to_end;
}

void note_failure() {
  has_failed = true;
}

void give_noted_failures_an_exit_code() {
  on_exit(
      [](int exit_code, void*) {
        if (exit_code != 0 || !has_failed) return;
        std::fflush(nullptr);
        _exit(1);
      },
      nullptr);
}

int run_program(const std::function<int()>& body) {
  const char* rank_variable = std::getenv("RANK");
  const std::string rank = rank_variable ? rank_variable : "";
  try {
    const int result = body();
    return result == 0 && has_failed ? 1 : result;
  } catch (const UserError& error) {
    return tell_once(rank, error.what() + memory_report_of(error.what()), 2);
  } catch (const TrainingError& error) {
    return tell_once(rank, error.what() + memory_report_of(error.what()), 1);
  } catch (const std::exception& error) {
    tell(rank, without_backtrace(error.what()) + memory_report_of(error.what()));
    return 1;
  }
}

}  // namespace zerorun
