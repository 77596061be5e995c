// Shared by the tests that kill trainings and let file systems fail: numbers from the environment, and
// trainings in child processes.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "tests/checkpoint/faulty_file_system.h"

namespace zerorun::testing {

inline constexpr int kSteps = 30;  // of each training, including steps after kills
using Random = std::mt19937_64;

inline int64_t number_from(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoll(text) : otherwise;
}

inline int any(Random& random, int count) {
  return static_cast<int>(random() % static_cast<uint64_t>(count));
}

inline Fault any_fault(Random& random) {
  return {.call = any(random, 30),
          .error = std::array{EIO, ENOSPC, EDQUOT, 0}[any(random, 4)],
          .is_short = any(random, 3) == 0};
}

// Results in memory that the test process and its children share.
struct Told {
  std::array<uint64_t, kSteps + 1> digests;  // of the state after each step of a training without kills
  std::atomic<int64_t> durable;              // the latest step whose checkpoint is known to be published
  std::array<char, 1000> failure;
};

inline Told& shared_memory() {
  void* memory = ::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  return *new (memory) Told{};
}

// Runs `body`, which starts threads, in a child process: this process forks again later and must not have
// threads then. Kills the child after `killed_after`, unless that is 0. Returns the child's wait status.
template <typename Body>
int in_child(Told& told, std::chrono::milliseconds killed_after, const Body& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      body();
    } catch (const std::exception& error) {
      std::strncpy(told.failure.data(), error.what(), told.failure.size() - 1);
      ::_exit(1);
    }
    ::_exit(0);
  }
  if (killed_after.count() > 0) {
    std::this_thread::sleep_for(killed_after);
    ::kill(child, SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace zerorun::testing
