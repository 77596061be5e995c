// Tests several jobs, duplicate ranks and strangers on one port, several connect() calls of one process, and
// a store whose server process is stopped by a signal.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/listening.h"
#include "comm/connect/rendezvous.h"
#include "tests/comm/rank_processes.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using namespace std::chrono_literals;
using testing::run_processes;

const std::string kSumOfTwo = "9.000000";

std::string sum_in_job(Communicator& communicator) {
  at::Tensor tensor = at::full({3}, communicator.rank() + 1);
  communicator.all_reduce(tensor, "greeting")->wait();
  return std::to_string(tensor.sum().item<double>());
}

void be_rank(int rank, int world_size, int port, const std::string& job,
             std::chrono::milliseconds timeout = 20s) {
  at::set_num_threads(1);
  testing::set_rank_variables(rank, world_size, port, timeout);
  setenv("ZERORUN_JOB", job.c_str(), 1);
}

// Lets forked processes wait until another process has reached a step. The data is in shared memory.
class Steps {
 public:
  Steps() {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
    shared_ = new (memory) Shared;
  }
  ~Steps() { munmap(shared_, sizeof(Shared)); }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  void reach(int step) { shared_->step = step; }
  void await(int step) const {
    while (shared_->step < step) usleep(5000);
  }
  void say_process(int rank) { shared_->process[rank] = getpid(); }
  pid_t process(int rank) const {
    while (shared_->process[rank] == 0) usleep(5000);
    return shared_->process[rank];
  }

 private:
  struct Shared {
    std::atomic<int> step = 0;
    std::atomic<pid_t> process[4] = {};
  };
  Shared* shared_;
};

// Serves a store as torchrun's agent does, until the process is killed.
[[noreturn]] void keep_agents_store(int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  for (;;) pause();
}

c10::intrusive_ptr<c10d::TCPStore> open_as_stranger(int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

bool is_reached(const char* address, int port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<in_port_t>(port));
  inet_pton(AF_INET, address, &name.sin_addr);
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  return connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) == 0;
}

}  // namespace

TEST_CASE("jobs: a process can connect any number of times, over shared memory and Gloo") {
  const char* comms[] = {"shm", "gloo"};
  std::vector<testing::ProcessJob> jobs;
  for (const char* comm : comms) {
    jobs.push_back({2, [comm, port = testing::free_port()](int rank) {
                      be_rank(rank, 2, port, "job");
                      setenv("ZERORUN_COMM", comm, 1);
                      std::string sums;
                      for (int connect_number = 0; connect_number < 3; ++connect_number) {
                        auto communicator = connect();
                        sums.append(sum_in_job(*communicator)).append(" ");
                        communicator.reset();
                        if (rank == 1)
                          usleep(700'000);  // rank 0 enters its next connect() 0.7 s before rank 1
                      }
                      auto first = connect();
                      auto second = connect();
                      return sums + sum_in_job(*second) + " " + sum_in_job(*first);
                    }});
  }
  const auto endings = testing::run_jobs(jobs);
  for (const int job : {0, 1}) {
    CAPTURE(comms[job]);
    for (const auto& ending : endings[job])
      CHECK(ending.text == "9.000000 9.000000 9.000000 9.000000 9.000000");
  }
}

TEST_CASE("jobs: a process can connect any number of times if torchrun's agent keeps the store") {
  const int port = testing::free_port();
  const auto endings = run_processes(
      3,
      [&](int index) -> std::string {
        if (index == 2) keep_agents_store(port);
        be_rank(index, 2, port, "");
        setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
        setenv("TORCHELASTIC_RUN_ID", "none", 1);
        auto first = connect();
        const std::string sum = sum_in_job(*first);
        first.reset();
        if (index == 1) usleep(700'000);
        auto second = connect();
        auto third = connect();
        return sum + " " + sum_in_job(*third) + " " + sum_in_job(*second);
      },
      2);
  for (int rank : {0, 1}) CHECK(endings[rank].text == "9.000000 9.000000 9.000000");
}

TEST_CASE("jobs: the store still works after a forked child of rank 0 has exited") {
  const int port = testing::free_port();
  const auto endings = run_processes(2, [&](int rank) {
    be_rank(rank, 2, port, "job");
    const std::string sum = sum_in_job(*connect());
    int status = 0;
    if (rank == 0) {
      const pid_t child = fork();
      if (child == 0) exit(0);
      waitpid(child, &status, 0);
    }
    return sum + " " + std::to_string(status) + " " + sum_in_job(*connect());
  });
  for (const auto& ending : endings) CHECK(ending.text == "9.000000 0 9.000000");
}

TEST_CASE("jobs: if two jobs start together on one port, one of them runs and the other gets an error") {
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    const int port = testing::free_port();
    const auto endings = run_processes(4, [&](int index) {
      be_rank(index % 2, 2, port, index < 2 ? "one" : "two");
      return sum_in_job(*connect());
    });
    const int living = endings[0].text == kSumOfTwo ? 0 : 2;
    const int told = 2 - living;
    CHECK(endings[living].text == kSumOfTwo);
    CHECK(endings[living + 1].text == kSumOfTwo);
    CHECK_THAT(endings[told].text,
               StartsWith("UserError: cannot listen on 127.0.0.1:" + std::to_string(port)) &&
                   Contains("the port is in use"));
    // Rank 1 of the refused job gets the UserError while the other job runs, and the CommError if it connects
    // after the other job has ended.
    CHECK_THAT(endings[told + 1].text,
               StartsWith("UserError: rank 1 has connected to the store of another job at 127.0.0.1:" +
                          std::to_string(port)) ||
                   StartsWith("CommError: rank 1 did not reach rank 0"));
  }
}

TEST_CASE(
    "jobs: a second process of a rank, or a rank of another job, gets an error; the first job continues") {
  struct {
    const char* job;
    int world_size;
    std::string message;
  } const cases[] = {
      {"", 2, "UserError: rank 1 is taken at 127.0.0.1:"},
      {"", 3, "UserError: rank 1 has connected to the store of another job at 127.0.0.1:"},
      {"another", 2, "UserError: rank 1 has connected to the store of another job at 127.0.0.1:"},
  };
  for (const auto& [job, world_size, message] : cases) {
    CAPTURE(job, world_size);
    const int port = testing::free_port();
    Steps steps;
    const auto endings = run_processes(3, [&, &job = job, &world_size = world_size](int index) {
      if (index == 2) {
        steps.await(1);
        be_rank(1, world_size, port, job);
        try {
          return sum_in_job(*connect());
        } catch (...) {
          steps.reach(2);
          throw;
        }
      }
      be_rank(index, 2, port, "");
      auto communicator = connect();
      std::string sums = sum_in_job(*communicator);
      if (index == 1) {
        steps.reach(1);
        steps.await(2);
      }
      sums.append(" ").append(sum_in_job(*communicator));
      communicator.reset();
      return sums + " " + sum_in_job(*connect());
    });
    for (int rank : {0, 1}) CHECK(endings[rank].text == "9.000000 9.000000 9.000000");
    CHECK_THAT(endings[2].text, StartsWith(message + std::to_string(port)) && Contains("--master_port"));
  }
}

TEST_CASE("jobs: values that a stranger copies to a rank's keys are an error") {
  const int port = testing::free_port();
  Steps steps;
  const auto endings = run_processes(2, [&](int index) -> std::string {
    if (index == 0) {
      be_rank(0, 2, port, "job");
      return sum_in_job(*connect());
    }
    // The stranger has no token, but can list the keys. It copies each value of rank 0 to rank 1's key.
    std::vector<std::string> keys;
    while (!is_reached("127.0.0.1", port)) usleep(5000);
    auto store = open_as_stranger(port);
    auto is_joined = [](const std::string& key) { return key.ends_with("/joined/0"); };
    while (std::ranges::none_of(keys, is_joined)) keys = store->listKeys();
    // The key /joined/0 is copied last: rank 0 ends, and its store with it, as soon as it reads that copy.
    std::ranges::stable_partition(keys, std::not_fn(is_joined));
    for (std::string key : keys) {
      if (key.starts_with("/")) key.erase(0, 1);  // TCPStore's prefix
      if (key.ends_with("0")) store->set(key.substr(0, key.size() - 1) + "1", store->get(key));
    }
    return "done";
  });
  CHECK_THAT(endings[0].text,
             StartsWith("CommError: ") && Contains("/joined/1'") &&
                 Contains("written by a process that does not know this job's token (ZERORUN_JOB)"));
  CHECK(endings[1].text == "done");
}

TEST_CASE("jobs: ranks of one host are reached at the master address only") {
  for (const char* local_world_size : {"2", ""}) {
    for (const std::string address : {"127.0.0.1", "localhost"}) {
      CAPTURE(local_world_size, address);
      const int port = testing::free_port();
      const auto endings = run_processes(2, [&](int rank) {
        be_rank(rank, 2, port, "job");
        setenv("MASTER_ADDR", address.c_str(), 1);
        setenv("LOCAL_WORLD_SIZE", local_world_size, 1);
        auto communicator = connect();
        const std::string elsewhere = is_reached("127.0.0.2", port) ? "reached" : "not reached";
        return elsewhere + " " + sum_in_job(*communicator);
      });
      for (const auto& ending : endings) CHECK(ending.text == "not reached 9.000000");
    }
  }
}

TEST_CASE("jobs: rank 0 takes the socket that the launcher hands down") {
  const ListeningSocket socket = listen_on("127.0.0.1", 0);
  const auto endings = run_processes(2, [&](int rank) {
    be_rank(rank, 2, socket.port, "job");
    if (rank == 0) {
      fcntl(socket.fd.get(), F_SETFD, 0);  // clears close-on-exec, as the launcher does for rank 0
      setenv(kListenVariable, std::to_string(socket.fd.get()).c_str(), 1);
    }
    return sum_in_job(*connect()) + " " + sum_in_job(*connect());
  });
  for (const auto& ending : endings) CHECK(ending.text == "9.000000 9.000000");
}

TEST_CASE("jobs: if rank 0 is stopped after it has opened the store, the others name it at their deadline") {
  // Rank 0 is stopped before rank 1 connects (comes_late), or while rank 1 waits in connect().
  const bool ways[] = {true, false};
  Steps steps_of[2];
  int ports[2];
  std::vector<testing::ProcessJob> jobs;
  for (const int way : {0, 1}) {
    ports[way] = testing::free_port();
    const auto body = [comes_late = ways[way], port = ports[way], &steps = steps_of[way]](int index) {
      if (index == 2) {  // stops rank 0
        while (!is_reached("127.0.0.1", port)) usleep(5000);
        if (!comes_late) steps.await(1);
        usleep(500'000);
        kill(steps.process(0), SIGSTOP);
        steps.reach(2);
        for (;;) pause();
      }
      const int rank = 1 - index;
      steps.say_process(rank);
      if (rank == 1 && comes_late) steps.await(2);
      if (rank == 1) steps.reach(1);
      be_rank(rank, 3, port, "job", 3s);
      return sum_in_job(*connect());
    };
    jobs.push_back({.count = 3, .body = body, .awaited = 1});
  }
  const auto endings = testing::run_jobs(jobs, 60s);
  for (const int way : {0, 1}) {
    CAPTURE(ways[way]);
    const auto& waiting = endings[way][0];
    CHECK_THAT(waiting.text, StartsWith("CommError: ") &&
                                 Contains("127.0.0.1:" + std::to_string(ports[way])) && Contains("rank 0") &&
                                 Contains("not answer") && Contains("--timeout"));
    CHECK(waiting.seconds < 15);
    CHECK(endings[way][1].text.empty());
  }
}

}  // namespace zerorun
