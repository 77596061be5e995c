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
#include "tests/support/temporary_folder.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
using std::chrono::milliseconds;
using testing::Ending;
using testing::run_processes;

constexpr int kSkipped = 77;
constexpr milliseconds kAmple = std::chrono::seconds(120);

// The text that a rank's body returns if all of its checks have passed.
constexpr char kRight[] = "right";

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

// Returns the values of one rank. They are small integers, whose sums are exact in every dtype and any order.
at::Tensor values_of(int rank, int64_t seed, int64_t numel, at::ScalarType dtype) {
  const at::Tensor index = at::arange(numel, at::kLong);
  return ((index * 7 + rank * 13 + seed * 5).remainder(23) - 11).to(dtype);
}

at::Tensor on_gpu(Communicator& comm, const at::Tensor& values) {
  return values.to(comm.device().location());
}

std::string expect(const std::string& what, const at::Tensor& got, const at::Tensor& wanted) {
  const at::Tensor found = got.cpu();
  if (found.scalar_type() == wanted.scalar_type() && found.equal(wanted)) return "";
  return "wrong " + what + " of " + c10::toString(wanted.scalar_type()) + " x " +
         std::to_string(wanted.numel()) + "\n";
}

at::Tensor sum_of_ranks(int ranks, int64_t seed, int64_t numel, at::ScalarType dtype) {
  at::Tensor total = values_of(0, seed, numel, at::kDouble);
  for (int rank = 1; rank < ranks; ++rank) total += values_of(rank, seed, numel, at::kDouble);
  return total.to(dtype);
}

at::Tensor gathered(int ranks, int64_t seed, int64_t slice, at::ScalarType dtype) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(values_of(rank, seed, slice, dtype));
  return at::cat(parts);
}

std::string check_reduce_scatter(Communicator& comm, int64_t seed, int64_t slice, at::ScalarType dtype) {
  const int ranks = comm.world_size();
  const at::Tensor wanted =
      sum_of_ranks(ranks, seed, slice * ranks, dtype).narrow(0, comm.rank() * slice, slice).clone();
  const at::Tensor values = values_of(comm.rank(), seed, slice * ranks, dtype);
  const at::Tensor input = comm.allocate(slice * ranks, dtype);
  input.copy_(values);
  const at::Tensor output = comm.allocate(slice, dtype);
  comm.reduce_scatter(output, input, "test")->wait();
  std::string wrong =
      expect("reduce_scatter", output, wanted) + expect("reduce_scatter's input", input, values);
  const at::Tensor own = input.narrow(0, comm.rank() * slice, slice);
  comm.reduce_scatter(own, input, "test")->wait();
  wrong += expect("reduce_scatter in place", own, wanted);
  const at::Tensor other = on_gpu(comm, values);  // memory of LibTorch, not of the communicator
  comm.reduce_scatter(output, other, "test")->wait();
  return wrong + expect("reduce_scatter of other memory", output, wanted);
}

std::string check_all_gather(Communicator& comm, int64_t seed, int64_t slice, at::ScalarType dtype) {
  const int ranks = comm.world_size();
  const at::Tensor wanted = gathered(ranks, seed, slice, dtype);
  const at::Tensor values = values_of(comm.rank(), seed, slice, dtype);
  const at::Tensor output = comm.allocate(slice * ranks, dtype);
  comm.all_gather(output, on_gpu(comm, values), "test")->wait();
  std::string wrong = expect("all_gather", output, wanted);
  output.zero_();
  const at::Tensor own = output.narrow(0, comm.rank() * slice, slice);
  own.copy_(values);
  comm.all_gather(output, own, "test")->wait();
  return wrong + expect("all_gather in place", output, wanted);
}

std::string check_the_others(Communicator& comm, int64_t seed, int64_t numel, at::ScalarType dtype) {
  at::Tensor tensor = on_gpu(comm, values_of(comm.rank(), seed, numel, dtype));
  comm.all_reduce(tensor, "test")->wait();
  std::string wrong = expect("all_reduce", tensor, sum_of_ranks(comm.world_size(), seed, numel, dtype));
  for (int root = 0; root < comm.world_size(); ++root) {
    tensor = on_gpu(comm, values_of(comm.rank(), seed + root, numel, dtype));
    comm.broadcast(tensor, root, "test")->wait();
    wrong += expect("broadcast", tensor, values_of(root, seed + root, numel, dtype));
  }
  return wrong;
}

std::string check_all(Communicator& comm) {
  std::string wrong;
  int64_t seed = 0;
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16, at::kHalf}) {
    for (int64_t slice : {0, 1, 1000, 600'000}) {  // NCCL registers the memory of the largest only
      wrong += check_reduce_scatter(comm, ++seed, slice, dtype);
      wrong += check_all_gather(comm, ++seed, slice, dtype);
      wrong += check_the_others(comm, ++seed, slice, dtype);
    }
  }
  comm.barrier("the end")->wait();
  return wrong.empty() ? kRight : wrong;
}

// Runs gathers and reductions of several sizes at the same time, on two lanes (device/streams.h). Only events
// order the lanes.
std::string check_lanes(Communicator& comm) {
  constexpr int kRounds = 50;
  Streams& streams = comm.device().streams();
  const int ranks = comm.world_size();
  const auto device = comm.device().location();
  std::vector<at::Tensor> sums;
  std::vector<at::Tensor> wholes;
  std::vector<at::Tensor> inputs;  // kept until the lanes have read them
  for (int round = 0; round < kRounds; ++round) {
    const int64_t slice = 1000 + 40'000 * (round % 7);
    const at::Tensor input = on_gpu(comm, values_of(comm.rank(), round, slice * ranks, at::kFloat));
    const at::Tensor part = on_gpu(comm, values_of(comm.rank(), round + 1, slice, at::kFloat));
    sums.push_back(at::empty({slice}, at::TensorOptions().device(device)));
    wholes.push_back(at::empty({slice * ranks}, at::TensorOptions().device(device)));
    inputs.insert(inputs.end(), {input, part});
    Event ready;
    streams.record(ready, streams.current());
    for (Lane lane : {Lane::reduce, Lane::gather}) {
      streams.wait(ready, streams.of(lane), Handover::written);
      const StreamScope scope(streams, lane);
      auto work = lane == Lane::reduce ? comm.reduce_scatter(sums.back(), input, "bucket")
                                       : comm.all_gather(wholes.back(), part, "bucket");
      work->wait();
    }
  }
  for (Lane lane : {Lane::reduce, Lane::gather}) {
    Event done;
    streams.record(done, streams.of(lane));
    streams.await(done, kAmple, "the lane");
  }
  std::string wrong;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t slice = sums[round].numel();
    wrong +=
        expect("sum on a lane", sums[round],
               sum_of_ranks(ranks, round, slice * ranks, at::kFloat).narrow(0, comm.rank() * slice, slice));
    wrong += expect("gather on a lane", wholes[round], gathered(ranks, round + 1, slice, at::kFloat));
  }
  return wrong.empty() ? kRight : wrong;
}

std::string check_together(Communicator& comm) {
  std::vector<at::Tensor> outputs;
  std::vector<std::unique_ptr<Work>> works;
  comm.as_one([&] {
    for (int i = 0; i < 5; ++i) {
      const int64_t slice = 100 + 1000 * i;
      outputs.push_back(comm.device().allocate(slice * comm.world_size(), at::kFloat));
      const at::Tensor own = outputs.back().narrow(0, comm.rank() * slice, slice);
      own.copy_(values_of(comm.rank(), i, slice, at::kFloat));
      works.push_back(comm.all_gather(outputs.back(), own, "bucket " + std::to_string(i)));
    }
  });
  std::string wrong;
  for (int i = 0; i < 5; ++i) {
    works[i]->wait();
    wrong +=
        expect("gather of a group", outputs[i], gathered(comm.world_size(), i, 100 + 1000 * i, at::kFloat));
  }
  return wrong.empty() ? kRight : wrong;
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
