#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/connect/rendezvous.h"
#include "tests/comm/rank_processes.h"
#include "tests/comm/two_levels.h"
#include "tests/random_programs/engine_run.h"
#include "tests/random_programs/isolated.h"
#include "tests/random_programs/plain_run.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

std::vector<Journal> plain_journals(const Program& program) {
  try {
    return run_plainly(program);
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

// Returns the rank's failure, or "" if the run passes.
std::string run_rank(const Program& program, const std::shared_ptr<Communicator>& communicator,
                     const std::filesystem::path& folder, const Journal& expected) {
  try {
    run_with_engine(program, communicator, folder, expected);
  } catch (const std::exception& error) {
    return "rank " + std::to_string(communicator->rank()) + ": " + error.what() + "\n";
  }
  return {};
}

}  // namespace

std::string run_in_threads(const Program& program, const std::filesystem::path& folder,
                           std::chrono::milliseconds deadline) {
  at::set_num_threads(1);
  const std::vector<Journal> journals = plain_journals(program);
  const int ranks = program.setup.ranks * program.setup.groups;
  std::vector<std::string> failures(ranks);
  run_ranks(
      ranks,
      [&](std::shared_ptr<Communicator> communicator) {
        const int rank = communicator->rank();
        if (program.setup.place == Place::hosts_of_threads) communicator = in_two_levels(communicator, 2);
        failures[rank] = run_rank(program, communicator, folder, journals[rank / program.setup.groups]);
      },
      deadline,
      program.setup.place == Place::sharing_threads || program.setup.place == Place::hosts_of_threads);
  // Moves the messages of ranks that only waited in vain for another rank to the end, because they do not
  // show the cause.
  std::ranges::stable_partition(failures, [](const std::string& failure) {
    return failure.find("did not take part") == std::string::npos;
  });
  return std::accumulate(failures.begin(), failures.end(), std::string());
}

struct RankProcess::State {
  std::shared_ptr<Communicator> communicator;
};

RankProcess::RankProcess(const Setup& setup, int rank, int port, std::chrono::milliseconds deadline)
    : state_(new State) {
  at::set_num_threads(1);
  const bool has_hosts = setup.place == Place::hosts_of_processes;
  set_rank_variables(rank, setup.ranks * setup.groups, port, deadline, has_hosts ? 2 : 0);
  const char* transport = setup.place == Place::gloo_processes ? "gloo" : has_hosts ? "two-level" : "shm";
  setenv("ZERORUN_COMM", transport, 1);
  state_->communicator = connect();
}

RankProcess::~RankProcess() {
  delete state_;
}

std::string RankProcess::run(const Program& program, const std::filesystem::path& folder) {
  const std::vector<Journal> journals = plain_journals(program);
  return run_rank(program, state_->communicator, folder,
                  journals[state_->communicator->rank() / program.setup.groups]);
}

}  // namespace zerorun::testing
