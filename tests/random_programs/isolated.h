// Runs programs in child processes, so that a crash or a hang counts as an ordinary failure. The calling
// process has no threads and never computes.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>

#include "tests/random_programs/program.h"

namespace zerorun::testing {

struct Outcome {
  size_t passed = 0;         // number of programs that passed, from the first on
  std::string failure = {};  // of the next program; empty: all passed
};

/// Whether two programs can run in the same child processes.
bool run_alike(const Program& a, const Program& b);
/// Runs programs that all run alike, until one fails. `deadline`: for every wait for other ranks.
Outcome run_isolated(std::span<const Program> programs, std::chrono::milliseconds deadline);

// in_ranks.cpp: for the child processes.
/// Runs the ranks as threads. Returns their failures; empty: none failed.
std::string run_in_threads(const Program& program, std::chrono::milliseconds deadline);
/// This process as one rank of several.
class RankProcess {
 public:
  RankProcess(const Setup& setup, int rank, int port, std::chrono::milliseconds deadline);
  ~RankProcess();
  std::string run(const Program& program);

 private:
  struct State;
  State* state_;
};

}  // namespace zerorun::testing
