// Runs programs in child processes, so that a crash or a hang is a failure like others. The calling process
// has no threads and never computes.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>

#include "tests/random_programs/program.h"

namespace zerorun::testing {

struct Outcome {
  size_t passed = 0;         // how many of them, from the first on
  std::string failure = {};  // of the one behind those; empty: all have passed
};

/// Whether two programs can run in the same child processes.
bool run_alike(const Program& a, const Program& b);
/// Runs programs that all run alike, until one fails. `deadline`: of every wait for other ranks.
Outcome run_isolated(std::span<const Program> programs, std::chrono::milliseconds deadline);

// in_ranks.cpp: called in the children.
/// In threads. What was wrong, by rank; empty: nothing.
std::string run_in_threads(const Program& program, std::chrono::milliseconds deadline);
/// This process as a rank among others.
class RankProcess {
 public:
  RankProcess(const Setup& setup, int rank, int port, std::chrono::milliseconds deadline);
  ~RankProcess();
  std::string run(const Program& program);

 private:
  struct State;
  State* state_;  // the process ends without giving it back
};

}  // namespace zerorun::testing
