// Tests programs that call init_process_group() on the MASTER_PORT that the engine uses. Instead of
// init_process_group() the tests use c10d, with the options that torch/distributed/rendezvous.py passes.
#define USE_C10D_GLOO 1
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
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

void be_rank(int rank, int port) {
  at::set_num_threads(1);
  testing::set_rank_variables(rank, 2, port, 20s);
  setenv("ZERORUN_JOB", "job", 1);
}

std::string engines_sum(Communicator& communicator) {
  at::Tensor tensor = at::full({3}, communicator.rank() + 1);
  communicator.all_reduce(tensor, "greeting")->wait();
  return std::to_string(tensor.sum().item<int>());
}

c10::intrusive_ptr<c10d::TCPStore> scripts_store(int rank, int port, bool shared = true) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = rank == 0;
  options.numWorkers = 2;
  options.timeout = 20s;
  options.multiTenant = shared;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

// The process group that init_process_group("gloo") makes from the environment variables.
class ScriptsGroup {
 public:
  ScriptsGroup(int rank, int port) : rank_(rank) {
    auto options = c10d::ProcessGroupGloo::Options::create(20s);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    auto store = c10::make_intrusive<c10d::PrefixStore>("default_pg", scripts_store(rank, port));
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, 2, options);
  }
  std::string sum() {
    std::vector<at::Tensor> tensors{at::full({3}, 10 * (rank_ + 1))};
    group_->allreduce(tensors)->wait();
    return std::to_string(tensors[0].sum().item<int>());
  }

 private:
  int rank_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

void inherit(const UniqueFd& socket) {
  fcntl(socket.get(), F_SETFD, 0);  // clears close-on-exec, as the launcher does for rank 0
  setenv(kListenVariable, std::to_string(socket.get()).c_str(), 1);
}

}  // namespace

TEST_CASE("script's store: the engine connects first, and the program's group shares its store") {
  for (const bool launched : {false, true}) {
    CAPTURE(launched);
    const ListeningSocket socket = listen_on("127.0.0.1", 0);
    const int port = launched ? socket.port : testing::free_port();
    const auto endings = run_processes(2, [&](int rank) {
      be_rank(rank, port);
      if (rank == 0 && launched) inherit(socket.fd);
      auto engine = connect();
      if (rank == 1) usleep(300'000);
      ScriptsGroup group(rank, port);
      return engines_sum(*engine) + " " + group.sum() + " " + engines_sum(*connect());
    });
    for (const auto& ending : endings) CHECK(ending.text == "9 90 9");
  }
}

TEST_CASE("script's store: the program's group comes first, and the engine shares its store") {
  // `launched`: the launcher has reserved the port, but does not listen on it.
  for (const bool launched : {false, true}) {
    for (const int late : {0, 1}) {
      CAPTURE(launched, late);
      const ListeningSocket socket = reserve_port("127.0.0.1", 0);
      const int port = launched ? socket.port : testing::free_port();
      const auto endings = run_processes(2, [&](int rank) {
        be_rank(rank, port);
        if (rank == 0 && launched) inherit(socket.fd);
        ScriptsGroup group(rank, port);
        if (rank == late) usleep(300'000);
        auto engine = connect();
        return group.sum() + " " + engines_sum(*engine) + " " + engines_sum(*connect());
      });
      for (const auto& ending : endings) CHECK(ending.text == "90 9 9");
    }
  }
}

TEST_CASE("script's store: a group that ends before or after the engine connects does not disturb it") {
  const int port = testing::free_port();
  const auto endings = run_processes(2, [&](int rank) {
    be_rank(rank, port);
    std::string sums;
    {
      ScriptsGroup group(rank, port);
      sums = group.sum();
      if (rank == 0) usleep(700'000);  // rank 1 waits at the group's store, which then ends
      if (rank == 1) sums.append(" ").append(engines_sum(*connect()));
    }
    if (rank == 0) sums.append(" ").append(engines_sum(*connect()));
    {
      ScriptsGroup group(rank, port);
      sums.append(" ").append(group.sum());
    }
    return sums + " " + engines_sum(*connect());
  });
  for (const auto& ending : endings) CHECK(ending.text == "90 9 90 9");
}

TEST_CASE("script's store: a store that cannot be shared is an error that says how it could be") {
  const int port = testing::free_port();
  const auto endings = run_processes(
      2,
      [&](int rank) {
        be_rank(rank, port);
        auto store = scripts_store(rank, port, false);
        if (rank == 1) pause();
        return engines_sum(*connect());
      },
      1);
  CHECK_THAT(endings[0].text,
             StartsWith("UserError: rank 0 cannot listen on 127.0.0.1:" + std::to_string(port)) &&
                 Contains("by this process itself") && Contains("multi_tenant=True"));
}

TEST_CASE("script's store: a reserved port that a stranger takes is named") {
  const ListeningSocket socket = reserve_port("127.0.0.1", 0);
  const ListeningSocket stranger = listen_on("127.0.0.1", socket.port);
  CHECK_THROWS_WITH(reserve_port("127.0.0.1", socket.port), Contains("the port is in use"));
  const auto endings = run_processes(1, [&](int rank) {
    close(stranger.fd.get());  // the parent's copy is still open
    be_rank(rank, socket.port);
    inherit(socket.fd);
    return engines_sum(*connect());
  });
  CHECK_THAT(endings[0].text,
             StartsWith("UserError: cannot listen on 127.0.0.1:" + std::to_string(socket.port)) &&
                 Contains("the port is in use, by process ") && Contains("start the job again") &&
                 !Contains("leave --master_port out"));
}

}  // namespace zerorun
