// Tests processes that use shared memory when one of them is late, or out of step, or cannot
// share memory. Checks which rank the error names. transports_test.cpp has the ranks that are killed or
// stopped.
#include <sys/resource.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>

#include "comm/shared_memory/shared_memory_communicator.h"
#include "tests/comm/transport_ranks.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using std::chrono::milliseconds;
using testing::Ending;
using testing::open_memory_files;
using testing::run_connected;
using testing::run_processes;
using testing::sleep_ms;

}  // namespace

TEST_CASE("shared memory: ranks whose label, size or dtype differ get an error that shows both sides") {
  struct Case {
    const char* label;
    int64_t numel;
    at::ScalarType dtype;
    const char* theirs;
  };
  const Case cases[] = {
      {"bucket 4", 4, at::kFloat, "all_gather of bucket 4 for layer1 (4 elements of Float)"},
      {"bucket 3", 5, at::kFloat, "all_gather of bucket 3 for layer1 (5 elements of Float)"},
      {"bucket 3", 4, at::kHalf, "all_gather of bucket 3 for layer1 (4 elements of Half)"}};
  for (const Case& test : cases) {
    const auto endings =
        run_connected({"shm", 2, milliseconds(30'000)}, [&](auto& communicator, int rank) -> std::string {
          const int64_t numel = rank == 0 ? 4 : test.numel;
          const auto options = at::TensorOptions().dtype(rank == 0 ? at::kFloat : test.dtype);
          communicator
              ->all_gather(at::empty({2 * numel}, options), at::ones({numel}, options),
                           rank == 0 ? "bucket 3" : test.label, "for layer" + std::to_string(rank))
              ->wait();
          return "went through";
        });
    const std::string mine = "all_gather of bucket 3 for layer0 (4 elements of Float)";
    CHECK(endings[0].text == "CommError: ranks disagree on the next collective: rank 0 is in " + mine +
                                 ", rank 1 in " + test.theirs);
    CHECK(endings[1].text == std::string("CommError: ranks disagree on the next collective: rank 1 is in ") +
                                 test.theirs + ", rank 0 in " + mine);
    for (const Ending& ending : endings) CHECK(ending.seconds < 15);  // long before the deadline of 30 s
  }
}

TEST_CASE("shared memory: ranks in different collectives get an error that shows both sides") {
  const auto endings =
      run_connected({"shm", 2, milliseconds(1500)}, [&](auto& communicator, int rank) -> std::string {
        at::Tensor tensor = at::ones({4});
        if (rank == 0) {
          communicator->all_reduce(tensor, "the gradient norm")->wait();
        } else {
          communicator->all_gather(at::empty({8}), tensor, "bucket 4", "for layer1")->wait();
        }
        return "went through";
      });
  const std::string sides[] = {"all_reduce of the gradient norm", "all_gather of bucket 4 for layer1"};
  for (int rank : {0, 1}) {
    CHECK(endings[rank].text == "CommError: ranks disagree on the next collective: rank " +
                                    std::to_string(rank) + " is in " + sides[rank] + ", rank " +
                                    std::to_string(1 - rank) + " in " + sides[1 - rank]);
  }
}

TEST_CASE("shared memory: a rank that is killed before it reads the others' input is named by them") {
  const auto endings = run_connected({"shm", 2}, [&](auto& communicator, int rank) -> std::string {
    at::Tensor input = communicator->allocate(50'000, at::kFloat);
    communicator->barrier("the start")->wait();
    if (rank == 0) sleep_ms(300);
    auto work = communicator->all_gather(at::empty({100'000}), input, "bucket 3");
    if (rank == 1) {
      sleep_ms(1000);
      raise(SIGKILL);  // rank 1 has posted its input, and rank 0 has mapped that memory
    }
    work->wait();
    return "went through";
  });
  CHECK_THAT(endings[0].text, StartsWith("CommError: all_gather of bucket 3: rank 1 has ended (process "));
}

TEST_CASE("shared memory: if one rank asks for Gloo, all use it, or it is an error if another asks for shm") {
  for (const std::string wanted : {"auto", "shm"}) {
    const int port = testing::free_port();
    const auto endings = run_processes(2, [&](int rank) -> std::string {
      testing::set_rank_variables(rank, 2, port, milliseconds(20'000));
      setenv("ZERORUN_COMM", rank == 0 ? wanted.c_str() : "gloo", 1);
      auto communicator = connect();
      at::Tensor tensor = at::full({1}, rank + 1);
      communicator->all_reduce(tensor, "norm")->wait();
      return std::to_string(open_memory_files()) + " " + std::to_string(tensor.item<double>());
    });
    for (const Ending& ending : endings) {
      CHECK(ending.text == (wanted == "auto"
                                ? "0 3.000000"
                                : "UserError: shared memory was requested (--comm shm, ZERORUN_COMM=shm), "
                                  "but rank 1 is told to use Gloo (--comm, ZERORUN_COMM)"));
    }
  }
}

TEST_CASE("shared memory: if one rank can have none, all use Gloo, or get an error with the reason") {
  for (const std::string wanted : {"auto", "shm"}) {
    const int port = testing::free_port();
    const auto endings = run_processes(2, [&](int rank) -> std::string {
      testing::set_rank_variables(rank, 2, port, milliseconds(20'000));
      setenv("ZERORUN_COMM", wanted.c_str(), 1);
      if (rank == 1) {
        const rlimit limit{.rlim_cur = 0, .rlim_max = 0};
        setrlimit(RLIMIT_FSIZE, &limit);
      }
      auto communicator = connect();
      at::Tensor tensor = at::full({1}, rank + 1);
      communicator->all_reduce(tensor, "norm")->wait();
      return std::to_string(tensor.item<double>());
    });
    for (const Ending& ending : endings) {
      if (wanted == "auto") {
        CHECK(ending.text == "3.000000");
      } else {
        CHECK_THAT(ending.text, StartsWith("UserError: shared memory was requested (--comm shm, ") &&
                                    Contains("but on rank 1: limits of the process (ulimit -f"));
      }
    }
  }
}

}  // namespace zerorun
