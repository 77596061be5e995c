// Tests ranks that are processes with one GPU each and use NCCL. As in a program, connect() loads
// libzerorun_cuda.so. The parent process never uses a GPU, because a process that has used a GPU must not
// fork. On a machine with one GPU the two ranks share it if NCCL can do that (2.30 or later). Otherwise a
// test checks that they get an error.
#define CATCH_CONFIG_RUNNER
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/cuda_driver.h"
#include "base/error.h"
#include "comm/connect/rendezvous.h"
#include "tests/comm/collective_script.h"
#include "tests/comm/rank_processes.h"
#include "tests/cuda/collective_checks.h"
#include "tests/support/temporary_folder.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
using std::chrono::milliseconds;
using testing::check_all;
using testing::check_lanes;
using testing::check_together;
using testing::Ending;
using testing::kAmple;
using testing::kRight;
using testing::run_processes;

constexpr int kSkipped = 77;

std::shared_ptr<Communicator> join(int rank, int world_size, int port, milliseconds timeout = kAmple) {
  at::set_num_threads(1);
  testing::set_rank_variables(rank, world_size, port, timeout);
  setenv("ZERORUN_DEVICE", "cuda", 1);
  return connect();
}

// Returns true if two ranks can connect on this machine, else prints the error.
bool two_ranks_fit() {
  static const bool fit = [] {
    const int port = testing::free_port();
    const auto endings = run_processes(2, [&](int rank) { return join(rank, 2, port), std::string(kRight); });
    if (endings[0].text != kRight) std::printf("left out: two ranks: %s\n", endings[0].text.c_str());
    return endings[0].text == kRight && endings[1].text == kRight;
  }();
  return fit;
}

// Returns the microseconds of the host for the start of an all-gather of 1 MiB, while the GPU is idle.
std::string time_collectives(Communicator& comm) {
  constexpr int kBatches = 50;
  constexpr int kCalls = 20;  // few enough that the queue of the stream is never full
  const int64_t slice = (int64_t{1} << 18) / comm.world_size();
  const at::Tensor whole = comm.allocate(slice * comm.world_size(), at::kFloat);
  const at::Tensor own = whole.narrow(0, comm.rank() * slice, slice);
  std::chrono::duration<double, std::micro> time{0};
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) comm.all_gather(whole, own, "test")->wait();
    if (batch > 0) time += std::chrono::steady_clock::now() - start;  // the first one connects the ranks
    (void)whole.sum().item<float>();
  }
  char text[64];
  std::snprintf(text, sizeof text, "%.1f us", time.count() / ((kBatches - 1) * kCalls));
  return text;
}

// Runs an all-gather on the GPU and waits for it as the engine does.
void gather_and_await(Communicator& comm, const std::string& label, int64_t slice,
                      const std::string& reason) {
  const auto options = at::TensorOptions().device(comm.device().location());
  const at::Tensor whole = at::zeros({slice * comm.world_size()}, options);
  comm.all_gather(whole, at::ones({slice}, options), label, reason)->wait();
  Event done;
  Streams& streams = comm.device().streams();
  streams.record(done, streams.current());
  streams.await(done, kAmple, label);
}

// Runs `body` and returns its error. Also checks that later calls throw the same error, and that the GPU can
// be used again.
std::string broken_by(Communicator& comm, const std::function<void()>& body) {
  const std::string error = testing::error_of<CommError>(body);
  const auto options = at::TensorOptions().device(comm.device().location());
  const std::string again =
      testing::error_of<CommError>([&] { (void)comm.all_reduce(at::ones({4}, options), "later"); });
  const std::string on_cpu =
      testing::error_of<CommError>([&] { (void)comm.all_reduce(at::ones({4}), "later"); });
  if (again != error || on_cpu != error) return "then another error: " + again + ", " + on_cpu;
  const double sum = at::ones({1000}, options).sum().item<double>();
  return sum == 1000 ? error : "a GPU that cannot add";
}

}  // namespace

TEST_CASE("nccl: one rank, which does not use NCCL") {
  const auto endings = run_processes(1, [](int) {
    setenv("ZERORUN_DEVICE", "cuda", 1);
    auto comm = connect();
    if (!comm->device().location().is_cuda()) return std::string("on the CPU");
    return check_all(*comm) + check_together(*comm);
  });
  CHECK(endings[0].text == std::string(kRight) + kRight);
}

TEST_CASE("nccl: every collective of two ranks, as the CPU computes it, with any memory registered") {
  if (!two_ranks_fit()) return;
  for (const char* registered : {"none", "buffers", "windows"}) {
    const int port = testing::free_port();
    const auto endings = run_processes(2, [&](int rank) {
      setenv("ZERORUN_NCCL_REGISTER", registered, 1);
      return check_all(*join(rank, 2, port));
    });
    for (const Ending& ending : endings) {
      INFO(registered);
      if (ending.text.starts_with("UserError: ZERORUN_NCCL_REGISTER=windows needs NCCL ")) continue;
      CHECK(ending.text == kRight);
    }
  }
}

TEST_CASE("nccl: a wrong ZERORUN_NCCL_REGISTER is an error that names the choices") {
  const int port = testing::free_port();
  const auto endings = run_processes(2, [&](int rank) {
    setenv("ZERORUN_NCCL_REGISTER", "window", 1);
    return join(rank, 2, port), std::string(kRight);
  });
  for (const Ending& ending : endings) {
    CHECK_THAT(ending.text, StartsWith("UserError: ZERORUN_NCCL_REGISTER=window: expected none") &&
                                Contains("buffers") && Contains("windows"));
  }
}

TEST_CASE("nccl: the host's time for a collective of two ranks") {
  if (!two_ranks_fit()) return;
  for (const char* registered : {"none", "buffers"}) {
    const int port = testing::free_port();
    const auto endings = run_processes(2, [&](int rank) {
      setenv("ZERORUN_NCCL_REGISTER", registered, 1);
      return time_collectives(*join(rank, 2, port));
    });
    for (const Ending& ending : endings) {
      CHECK_THAT(ending.text, EndsWith(" us"));
      std::printf("registered: %s; the host's time for an all-gather of 1 MiB: %s\n", registered,
                  ending.text.c_str());
    }
  }
}

TEST_CASE("nccl: sums of CPU tensors have the bits of sums in rank order, and are counted once") {
  const int world_size = two_ranks_fit() ? 2 : 1;
  const int port = testing::free_port();
  const auto endings = run_processes(
      world_size, [&](int rank) { return testing::run_collective_script(*join(rank, world_size, port)); });
  for (const Ending& ending : endings) CHECK(ending.text == testing::script_success(world_size));
}

TEST_CASE("nccl: collectives on two lanes at the same time, and groups") {
  if (!two_ranks_fit()) return;
  const int port = testing::free_port();
  const auto endings = run_processes(2, [&](int rank) {
    auto comm = join(rank, 2, port);
    return check_lanes(*comm) + check_together(*comm);
  });
  for (const Ending& ending : endings) CHECK(ending.text == std::string(kRight) + kRight);
}

TEST_CASE("nccl: allocated memory is zero, and may outlive the communicator or go before it") {
  const int world_size = two_ranks_fit() ? 2 : 1;
  const int port = testing::free_port();
  const auto endings = run_processes(world_size, [&](int rank) -> std::string {
    at::Tensor kept;
    {
      auto comm = join(rank, world_size, port);
      for (int64_t numel : {0, 1, 1000, 300'000, 5'000'000}) {
        kept = comm->allocate(numel, at::kFloat);
        if (kept.numel() != numel || !kept.is_cuda()) return "not what was asked for";
        if (numel > 0 && kept.abs().sum().item<float>() != 0) return "not zero";
        if (reinterpret_cast<uintptr_t>(kept.const_data_ptr()) % 256 != 0) return "not aligned";
        if (numel == 0) continue;
        kept.fill_(1);
        comm->all_reduce(kept, "test")->wait();
        if (kept.sum().item<double>() != static_cast<double>(numel) * world_size) return "a wrong sum";
      }
    }
    return kept.add(1).min().item<float>() == static_cast<float>(world_size + 1) ? kRight : "lost values";
  });
  for (const Ending& ending : endings) CHECK(ending.text == kRight);
}

TEST_CASE("nccl: a rank that never comes is named at the deadline, and the GPU is free again") {
  if (!two_ranks_fit()) return;
  const int port = testing::free_port();
  const auto endings = run_processes(
      2,
      [&](int rank) -> std::string {
        auto comm = join(rank, 2, port, milliseconds(20'000));
        gather_and_await(*comm, "the start", 100, "");  // makes NCCL connect the ranks
        if (rank == 1)
          for (;;) pause();
        return broken_by(*comm, [&] { gather_and_await(*comm, "bucket 3", 1000, "for aten::mm"); });
      },
      1);
  CHECK(endings[0].text ==
        "all_gather of bucket 3 for aten::mm: rank 1 did not take part within 20 s (the limit set by "
        "--timeout)");
  CHECK(endings[0].seconds < 90);
}

TEST_CASE("nccl: a rank that has died is noticed by the deadline") {
  if (!two_ranks_fit()) return;
  const int port = testing::free_port();
  const auto endings = run_processes(2, [&](int rank) -> std::string {
    auto comm = join(rank, 2, port, milliseconds(20'000));
    gather_and_await(*comm, "the start", 100, "");
    if (rank == 1) raise(SIGKILL);
    return broken_by(*comm, [&] { gather_and_await(*comm, "bucket 3", 1000, ""); });
  });
  CHECK(WIFSIGNALED(endings[1].status));
  CHECK_THAT(endings[0].text, StartsWith("all_gather of bucket 3"));
  CHECK(endings[0].seconds < 90);
}

TEST_CASE("nccl: ranks that wait for different collectives get an error that names both") {
  if (!two_ranks_fit()) return;
  const int port = testing::free_port();
  const auto endings = run_processes(2, [&](int rank) -> std::string {
    auto comm = join(rank, 2, port, milliseconds(20'000));
    gather_and_await(*comm, "the start", 100, "");
    return broken_by(*comm, [&] {
      // Gathers and reductions use two NCCL communicators, so NCCL cannot match these two collectives.
      if (rank == 0) return gather_and_await(*comm, "bucket 3", 1000, "");
      const auto options = at::TensorOptions().device(comm->device().location());
      comm->reduce_scatter(at::zeros({500}, options), at::ones({1000}, options), "bucket 4")->wait();
      Event done;
      comm->device().streams().record(done, comm->device().streams().current());
      comm->device().streams().await(done, kAmple, "bucket 4");
    });
  });
  for (int rank : {0, 1}) {
    CHECK_THAT(endings[rank].text,
               StartsWith("ranks disagree on the next collective: rank " + std::to_string(rank)) &&
                   Contains("all_gather of bucket 3") && Contains("reduce_scatter of bucket 4"));
  }
}

TEST_CASE("nccl: ranks that share a GPU get an error that names them if NCCL cannot share GPUs") {
  if (two_ranks_fit()) return;
  const int port = testing::free_port();
  const auto endings = run_processes(2, [&](int rank) { return join(rank, 2, port), std::string(kRight); });
  for (const Ending& ending : endings) {
    CHECK_THAT(ending.text, StartsWith("UserError: ranks 0, 1 share the GPU ") && Contains("--device cpu"));
  }
}

}  // namespace zerorun

int main(int argc, char** argv) {
  const auto endings = zerorun::testing::run_processes(1, [](int) {
    std::string reason;
    return zerorun::count_usable_gpus(reason) > 0 ? "" : reason;
  });
  if (!endings.front().text.empty()) {
    std::printf("skipped: no GPU: %s\n", endings.front().text.c_str());
    return zerorun::kSkipped;
  }
  return Catch::Session().run(argc, argv);
}
