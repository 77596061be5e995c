// Helpers for tests whose ranks are processes that use shared memory.
#pragma once

#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "comm/connect/rendezvous.h"
#include "tests/comm/rank_processes.h"

namespace zerorun::testing {

/// Connects this process as one rank over shared memory.
inline std::shared_ptr<Communicator> join_over_shared_memory(
    int rank, int world_size, int port, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  at::set_num_threads(1);
  set_rank_variables(rank, world_size, port, timeout);
  setenv("ZERORUN_COMM", "shm", 1);
  return connect();
}

[[noreturn]] inline void stay_away() {
  for (;;) pause();
}

inline void sleep_ms(int duration) {
  std::this_thread::sleep_for(std::chrono::milliseconds(duration));
}

/// Returns the number of memfds that this process has open.
inline int open_memory_files() {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    found += std::filesystem::read_symlink(entry.path(), gone).string().find("memfd:") != std::string::npos;
  }
  return found;
}

}  // namespace zerorun::testing
