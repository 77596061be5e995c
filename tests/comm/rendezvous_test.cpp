// Tests how ranks find each other, and the errors when they do not.
#include "comm/connect/rendezvous.h"

#include <sched.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "base/error.h"
#include "base/join_board.h"
#include "tests/comm/rank_processes.h"
#include "tests/support/temporary_folder.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using std::chrono::milliseconds;
using testing::Ending;
using testing::run_processes;
using Table = std::map<std::string, std::string>;

const Table kGood = {{"RANK", "1"},
                     {"WORLD_SIZE", "4"},
                     {"LOCAL_RANK", "1"},
                     {"MASTER_ADDR", "10.0.0.7"},
                     {"MASTER_PORT", "29500"}};

// Sets `variables`, and unsets all other environment variables that the constructor lists. The destructor
// restores the old values.
class ScopedVariables {
 public:
  explicit ScopedVariables(const Table& variables) {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
          "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID",
          "SLURM_RESTART_COUNT", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "ZERORUN_JOB",
          "ZERORUN_TIMEOUT", "ZERORUN_DEVICE", "ZERORUN_COMM"}) {
      if (const char* value = std::getenv(name)) saved_[name] = value;
      unsetenv(name);
      names_.push_back(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~ScopedVariables() {
    for (const std::string& name : names_) {
      if (saved_.contains(name)) {
        setenv(name.c_str(), saved_[name].c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
  }

 private:
  std::vector<std::string> names_;
  Table saved_;
};

Table with(const std::string& name, const std::string& value) {
  Table variables = kGood;
  variables[name] = value;
  return variables;
}

std::string sum_after_meeting(Communicator& communicator) {
  at::Tensor tensor = at::full({3}, communicator.rank() + 1);
  communicator.all_reduce(tensor, "greeting")->wait();
  return std::to_string(tensor.sum().item<double>());
}

[[noreturn]] void stay() {
  for (;;) pause();
}

}  // namespace

TEST_CASE("environment: all variables are read") {
  ScopedVariables variables(with("ZERORUN_TIMEOUT", "2.5"));
  const Environment environment = Environment::read();
  CHECK(environment.rank == 1);
  CHECK(environment.world_size == 4);
  CHECK(environment.local_rank == 1);
  CHECK(environment.master_addr == "10.0.0.7");
  CHECK(environment.master_port == 29500);
  CHECK_FALSE(environment.agent_store);
  CHECK(environment.timeout == milliseconds(2500));
  CHECK(environment.local_world_size == 4);
  CHECK(environment.device == DeviceChoice::automatic);
  CHECK(environment.comm == CommChoice::automatic);
}

TEST_CASE("environment: ZERORUN_COMM is read") {
  const std::pair<const char*, CommChoice> cases[] = {{"", CommChoice::automatic},
                                                      {"auto", CommChoice::automatic},
                                                      {"shm", CommChoice::shared_memory},
                                                      {"gloo", CommChoice::gloo}};
  for (const auto& [text, wanted] : cases) {
    INFO(text);
    ScopedVariables variables(with("ZERORUN_COMM", text));
    CHECK(Environment::read().comm == wanted);
  }
}

TEST_CASE("environment: the device is read, with ranks or without") {
  const std::pair<const char*, DeviceChoice> cases[] = {{"", DeviceChoice::automatic},
                                                        {"auto", DeviceChoice::automatic},
                                                        {"cpu", DeviceChoice::cpu},
                                                        {"cuda", DeviceChoice::cuda}};
  for (const auto& [text, wanted] : cases) {
    INFO(text);
    ScopedVariables variables(with("ZERORUN_DEVICE", text));
    CHECK(Environment::read().device == wanted);
    const Table one = {{"ZERORUN_DEVICE", text}};
    ScopedVariables alone(one);
    CHECK(Environment::read().device == wanted);
  }
}

TEST_CASE("environment: LOCAL_WORLD_SIZE is the number of ranks of this machine") {
  ScopedVariables variables(with("LOCAL_WORLD_SIZE", "2"));
  CHECK(Environment::read().local_world_size == 2);
}

TEST_CASE("environment: without variables there is one rank, which connects to nobody") {
  ScopedVariables variables({});
  Environment environment = Environment::read();
  CHECK(environment.world_size == 1);
  CHECK(environment.local_world_size == 1);
  CHECK(environment.rank == 0);
  CHECK(environment.timeout == std::chrono::minutes(10));
  environment.device = DeviceChoice::cpu;
  auto communicator = connect(environment);
  CHECK(communicator->world_size() == 1);
  CHECK(sum_after_meeting(*communicator) == "3.000000");
}

TEST_CASE("environment: a world of one needs no address") {
  ScopedVariables variables(
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"ZERORUN_DEVICE", "cpu"}});
  CHECK(connect()->world_size() == 1);
}

TEST_CASE("environment: TORCHELASTIC_USE_AGENT_STORE is read") {
  {
    ScopedVariables variables(with("TORCHELASTIC_USE_AGENT_STORE", "True"));
    CHECK(Environment::read().agent_store);
  }
  ScopedVariables variables(with("TORCHELASTIC_USE_AGENT_STORE", "False"));
  CHECK_FALSE(Environment::read().agent_store);
}

TEST_CASE("environment: the job is identified by the variables of the launcher that started the ranks") {
  auto job_of = [](const Table& variables) {
    Table all = kGood;
    all.insert(variables.begin(), variables.end());
    ScopedVariables scoped(all);
    return Environment::read().job;
  };
  const Table slurm = {{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "2"}};
  const Table torchrun = {{"TORCHELASTIC_RUN_ID", "run"}, {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "2"}};
  Table restarted = torchrun;
  restarted["TORCHELASTIC_RESTART_COUNT"] = "3";
  Table launched = torchrun;
  launched["ZERORUN_JOB"] = "token";
  CHECK(job_of({}).empty());
  CHECK(job_of({{"ZERORUN_JOB", ""}}).empty());
  CHECK_THAT(job_of(slurm), Contains("slurm") && Contains("7") && Contains("2"));
  CHECK(job_of(slurm) != job_of({{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "3"}}));
  CHECK_THAT(job_of(torchrun), Contains("torchrun run"));
  CHECK(job_of(restarted) == job_of(torchrun));
  CHECK_THAT(job_of(launched), Contains("token") && !Contains("torchrun"));
}

TEST_CASE("environment: LOCAL_WORLD_SIZE or a loopback address shows that all ranks are on one host") {
  auto is_one_host = [](const std::string& address, const std::string& local_world_size) {
    ScopedVariables variables({{"RANK", "1"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "1"},
                               {"MASTER_ADDR", address},
                               {"MASTER_PORT", "29500"},
                               {"LOCAL_WORLD_SIZE", local_world_size}});
    return Environment::read().one_host;
  };
  CHECK(is_one_host("10.0.0.7", "4"));
  CHECK_FALSE(is_one_host("10.0.0.7", "2"));
  CHECK_FALSE(is_one_host("10.0.0.7", ""));
  for (const char* address : {"127.0.0.1", "127.0.1.1", "localhost", "::1"}) CHECK(is_one_host(address, ""));
}

TEST_CASE("environment: a missing variable is named") {
  for (const auto& [name, value] : kGood) {
    Table rest = kGood;
    rest.erase(name);
    ScopedVariables variables(rest);
    CHECK_THROWS_AS(Environment::read(), UserError);
    CHECK_THROWS_WITH(Environment::read(), Contains("environment variable " + name + " is not set"));
    ScopedVariables empty(with(name, ""));
    CHECK_THROWS_WITH(Environment::read(), Contains("environment variable " + name + " is not set"));
  }
}

TEST_CASE("environment: a malformed variable is named with its value") {
  const std::pair<const char*, const char*> cases[] = {{"RANK", "two"},
                                                       {"RANK", "-1"},
                                                       {"RANK", "4"},
                                                       {"RANK", "1 "},
                                                       {"RANK", "1.0"},
                                                       {"RANK", "99999999999"},
                                                       {"WORLD_SIZE", "0"},
                                                       {"WORLD_SIZE", "4x"},
                                                       {"LOCAL_RANK", "-2"},
                                                       {"LOCAL_RANK", "4"},
                                                       {"LOCAL_WORLD_SIZE", "1"},
                                                       {"LOCAL_WORLD_SIZE", "5"},
                                                       {"ZERORUN_DEVICE", "gpu"},
                                                       {"ZERORUN_DEVICE", "CUDA"},
                                                       {"ZERORUN_COMM", "nccl"},
                                                       {"ZERORUN_COMM", "SHM"},
                                                       {"MASTER_PORT", "0"},
                                                       {"MASTER_PORT", "65536"},
                                                       {"MASTER_PORT", "http"},
                                                       {"ZERORUN_TIMEOUT", "0"},
                                                       {"ZERORUN_TIMEOUT", "-1"},
                                                       {"ZERORUN_TIMEOUT", "10s"},
                                                       {"ZERORUN_TIMEOUT", "nan"},
                                                       {"ZERORUN_TIMEOUT", "inf"}};
  for (const auto& [name, value] : cases) {
    ScopedVariables variables(with(name, value));
    CHECK_THROWS_AS(Environment::read(), UserError);
    CHECK_THROWS_WITH(Environment::read(),
                      Contains(std::string("environment variable ") + name + "=" + value + ": expected"));
  }
}

TEST_CASE("rendezvous: a port in use is named") {
  const testing::OccupiedPort occupied;
  const auto endings = run_processes(1, [&](int) {
    testing::set_rank_variables(0, 2, occupied.port(), milliseconds(20000));
    return sum_after_meeting(*connect());
  });
  CHECK_THAT(endings[0].text, StartsWith("UserError: ") &&
                                  Contains("127.0.0.1:" + std::to_string(occupied.port())) &&
                                  Contains("port is in use") && Contains("--master_port"));
  CHECK(endings[0].seconds < 15);
}

TEST_CASE("rendezvous: a master address that this host does not know is named within seconds") {
  const std::vector<std::string> addresses = {"no-such-host.invalid", "no-such-host.invalid", " 127.0.0.1",
                                              "[::1]"};
  const auto endings = run_processes(4, [&](int index) {
    // Rank 0 does not wait for the deadline.
    testing::set_rank_variables(std::min(index, 1), 2, testing::free_port(),
                                milliseconds(index == 0 ? 60000 : 7000));
    setenv("MASTER_ADDR", addresses[index].c_str(), 1);
    return sum_after_meeting(*connect());
  });
  for (size_t index = 0; index < addresses.size(); ++index) {
    CHECK_THAT(endings[index].text, StartsWith("CommError: the address of " + addresses[index] +
                                               " (MASTER_ADDR) cannot be found"));
    CHECK(endings[index].seconds < 20);
    if (index > 0) CHECK(endings[index].seconds > 6);  // the name may become known until the deadline
  }
}

TEST_CASE("rendezvous: a host whose loopback interface is off is told so within seconds") {
  const std::string skipped = "no network of its own";
  const auto endings = run_processes(1, [&](int) {
    if (unshare(geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET) != 0) return skipped;
    testing::set_rank_variables(0, 2, 29500, milliseconds(60000));
    return sum_after_meeting(*connect());
  });
  if (endings[0].text == skipped) {
    WARN("no network of its own: skipped");
    return;
  }
  CHECK_THAT(endings[0].text,
             StartsWith("CommError: no network interface leads to 127.0.0.1 (MASTER_ADDR): ") &&
                 Contains("switch on this host's loopback interface"));
  CHECK(endings[0].seconds < 20);
}

TEST_CASE("rendezvous: the launcher's board shows who joins, and a left-over path is not written to") {
  const JoinBoard board(2);
  const std::string path = board.path();
  const int port = testing::free_port();
  const auto endings = run_processes(2, [&](int rank) {
    setenv(kBoardVariable, path.c_str(), 1);
    testing::set_rank_variables(rank, 2, port, milliseconds(20000));
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(500));
      if (board.joins(0).number != 1) return std::string("rank 0 does not show that it joins");
    }
    return sum_after_meeting(*connect());
  });
  for (const Ending& ending : endings)
    CHECK_THAT(ending.text, !Contains("rank 0 does not") && !Contains("Error"));
  for (const int rank : {0, 1}) {
    CHECK(board.joins(rank).number == 2);
    CHECK(board.joins(rank).world_size == 2);
  }

  const testing::TemporaryFolder folder;
  const std::string precious = folder.write("precious", "thesis");
  setenv(kBoardVariable, precious.c_str(), 1);
  { const Joining joining(0, 2); }
  unsetenv(kBoardVariable);
  CHECK(testing::read_file(precious) == "thesis");
}

TEST_CASE("rendezvous: ranks that never join are named at the deadline") {
  const int port = testing::free_port();
  const auto endings = run_processes(1, [&](int) {
    testing::set_rank_variables(0, 4, port, milliseconds(1500));
    return sum_after_meeting(*connect());
  });
  CHECK(endings[0].text == "CommError: rendezvous at 127.0.0.1:" + std::to_string(port) +
                               ": ranks 1, 2, 3 did not take part within 1.5 s (the limit set by --timeout)");
  CHECK(endings[0].seconds >= 1.5);
  CHECK(endings[0].seconds < 12);
}

TEST_CASE("rendezvous: ranks that have joined name the one that did not") {
  const int port = testing::free_port();
  const auto endings = run_processes(2, [&](int rank) {
    testing::set_rank_variables(rank, 3, port, milliseconds(2500));
    return sum_after_meeting(*connect());
  });
  for (const Ending& ending : endings) {
    CHECK_THAT(ending.text,
               StartsWith("CommError: rendezvous at 127.0.0.1:") && Contains(": rank 2 did not"));
  }
}

TEST_CASE("rendezvous: if rank 0 is missing, the others report that they did not reach it") {
  const int port = testing::free_port();
  const auto endings = run_processes(1, [&](int) {
    testing::set_rank_variables(1, 2, port, milliseconds(1500));
    return sum_after_meeting(*connect());
  });
  CHECK_THAT(endings[0].text,
             StartsWith("CommError: rank 1 did not reach rank 0 at 127.0.0.1:" + std::to_string(port)));
  CHECK(endings[0].seconds < 15);
}

TEST_CASE("rendezvous: if torchrun's agent keeps the store, rank 0 is a client, also after a restart") {
  const int port = testing::free_port();
  const auto endings = run_processes(
      5,
      [&](int index) -> std::string {
        if (index == 4) {
          c10d::TCPStoreOptions options;
          options.port = static_cast<uint16_t>(port);
          options.isServer = true;
          options.waitWorkers = false;
          auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
          stay();
        }
        const int restart = index / 2;
        // Processes 2 and 3 are the ranks after a restart by torchrun. They start at different times, after
        // processes 0 and 1 have ended.
        if (restart == 1) sleep(index == 2 ? 5 : 3);
        testing::set_rank_variables(index % 2, 2, port, milliseconds(10000));
        setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
        setenv("TORCHELASTIC_RESTART_COUNT", std::to_string(restart).c_str(), 1);
        return sum_after_meeting(*connect());
      },
      4);
  for (int index = 0; index < 4; ++index) {
    INFO("restart " << index / 2 << ", rank " << index % 2);
    CHECK(endings[index].text == "9.000000");
  }
}

}  // namespace zerorun
