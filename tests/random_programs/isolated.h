// Runs programs in child processes, so that a crash or a hang of a program counts as an ordinary failure. The
// parent process has no threads and runs no tensor operators, which makes fork() safe.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "tests/random_programs/program.h"

namespace zerorun::testing {

struct Outcome {
  size_t passed = 0;         // number of programs that passed before the first failure
  std::string failure = {};  // message of the program that failed; empty: all passed
};

/// Whether the same child processes can run both programs. They can if both programs run their ranks as
/// threads, or if both run them as processes with the same Place and the same numbers of ranks and data
/// groups.
bool run_alike(const Program& a, const Program& b);
/// Runs programs until one fails. run_alike() must hold for all of them. `deadline` limits each wait for
/// other ranks.
Outcome run_isolated(std::span<const Program> programs, std::chrono::milliseconds deadline);

// For the child processes, defined in in_ranks.cpp:
/// Runs the program's ranks as threads. Returns the messages of the ranks that failed, or an empty string.
/// The program's checkpoints are in `folder`.
std::string run_in_threads(const Program& program, const std::filesystem::path& folder,
                           std::chrono::milliseconds deadline);
/// Runs programs in this process, which is one of several rank processes.
class RankProcess {
 public:
  RankProcess(const Setup& setup, int rank, int port, std::chrono::milliseconds deadline);
  ~RankProcess();
  std::string run(const Program& program, const std::filesystem::path& folder);

 private:
  struct State;
  State* state_;
};

}  // namespace zerorun::testing
