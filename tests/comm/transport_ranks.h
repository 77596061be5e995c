// Runs ranks as processes that are connected by Gloo or by shared memory.
#pragma once

#include <torch/torch.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/connect/rendezvous.h"
#include "tests/comm/rank_processes.h"

namespace zerorun::testing {

struct ConnectedRanks {
  std::string transport = {};  // a value of ZERORUN_COMM: "gloo", "shm" or "two-level"
  int count = 2;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  int first_rank = 0;  // process i is rank (first_rank + i) % count
  int awaited = -1;    // as in run_processes()
  int per_host = 0;    // the ranks of each host, as the launcher would say; 0: all are on one
};

/// One rank's part. It may release the communicator.
using ConnectedBody = std::function<std::string(std::shared_ptr<Communicator>& communicator, int rank)>;

/// Connects this process as one rank.
inline std::shared_ptr<Communicator> join(const ConnectedRanks& ranks, int rank, int port) {
  at::set_num_threads(1);
  set_rank_variables(rank, ranks.count, port, ranks.timeout, ranks.per_host);
  setenv("ZERORUN_COMM", ranks.transport.c_str(), 1);
  return connect();
}

/// The job whose processes are connected as ranks, and run `body`.
inline ProcessJob connected_job(const ConnectedRanks& ranks, const ConnectedBody& body) {
  return {.count = ranks.count,
          .body =
              [ranks, body, port = free_port()](int index) {
                const int rank = (ranks.first_rank + index) % ranks.count;
                auto communicator = join(ranks, rank, port);
                return body(communicator, rank);
              },
          .awaited = ranks.awaited};
}

/// Runs `body` in one process for each rank. Returns the endings in the order of the processes.
inline std::vector<Ending> run_connected(const ConnectedRanks& ranks, const ConnectedBody& body) {
  return run_jobs({connected_job(ranks, body)}).front();
}

struct TransportEndings {
  std::string transport;
  std::vector<Ending> endings;
};

/// Runs `body` on the same ranks over Gloo and over shared memory, at the same time.
inline std::vector<TransportEndings> run_over_both(ConnectedRanks ranks, const ConnectedBody& body) {
  std::vector<ProcessJob> jobs;
  for (const char* transport : {"gloo", "shm"}) {
    ranks.transport = transport;
    jobs.push_back(connected_job(ranks, body));
  }
  const auto endings = run_jobs(jobs);
  return {{"gloo", endings[0]}, {"shm", endings[1]}};
}

/// CHECKs that all processes returned `text`.
inline void check_texts(const std::vector<Ending>& endings, const std::string& text = "went through") {
  for (const Ending& ending : endings) CHECK(ending.text == text);
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
