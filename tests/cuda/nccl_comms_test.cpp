// Tests NCCL communicators of a single rank: the part of ZeroRun's use of NCCL that needs only one GPU.
#include "cuda/nccl_comms.h"

#include <ATen/cuda/Sleep.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <thread>

#include "base/error.h"
#include "cuda/cuda_check.h"
#include "cuda/cuda_device.h"
#include "cuda/nccl_library.h"
#include "cuda/nccl_memory.h"
#include "cuda/stream_probe.h"

namespace zerorun {
namespace {

using namespace std::chrono_literals;

// One rank with two NCCL communicators and a watchdog.
struct OneRank {
  explicit OneRank(bool blocking = true, std::chrono::milliseconds timeout = 60s)
      : probe(0, comms), watchdog({.timeout = timeout}, probe, {}) {
    watchdog.start();
    const size_t slot = watchdog.begin_on_host("connecting");
    comms->connect(NcclComms::make_ids(2), {.blocking = blocking}, watchdog, slot);
    watchdog.end(slot);
  }
  ~OneRank() {
    watchdog.stop();
    comms->close();
  }

  cudaStream_t stream() { return device.streams().handle(device.streams().current()); }

  size_t start(const std::vector<CollectiveCall>& calls) {
    const auto operation = comms->operate();
    const size_t slot = watchdog.take();
    probe.record_before(slot, stream());
    watchdog.begin(slot, calls, stream());
    comms->issue(calls, stream(), watchdog, slot);
    probe.record_after(slot, stream());
    watchdog.enqueued(slot);
    return slot;
  }

  at::Tensor values(int64_t numel) {
    return at::arange(numel, at::TensorOptions().dtype(at::kFloat).device(device.location()));
  }
  at::Tensor zeros(int64_t numel) {
    return at::zeros({numel}, at::TensorOptions().dtype(at::kFloat).device(device.location()));
  }

  CudaDevice device{0};
  std::shared_ptr<NcclComms> comms = std::make_shared<NcclComms>(0);
  StreamProbe probe;
  NcclWatchdog watchdog;
};

void work_for(std::chrono::milliseconds time) {
  int kilohertz = 0;
  ZR_CUDA(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, 0));
  at::cuda::sleep(time.count() * kilohertz);
}

}  // namespace

TEST_CASE("nccl communicators: collectives run one by one, and several as one group") {
  for (const bool blocking : {true, false}) {
    OneRank rank(blocking);
    const at::Tensor from = rank.values(1000);
    std::vector<at::Tensor> to;
    std::vector<CollectiveCall> calls;
    for (Collective kind : {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce}) {
      to.push_back(rank.zeros(1000));
      calls.push_back({kind, to.back(), from, 0, "test", {}});
      for (int turn = 0; turn < 2; ++turn) {  // the first in a helper thread, the second in this one
        rank.start({calls.back()});
        CHECK(to.back().equal(from));
        to.back().zero_();
      }
    }
    for (int turn = 0; turn < 2; ++turn) {
      rank.start(calls);
      for (const at::Tensor& tensor : to) {
        CHECK(tensor.equal(from));
        tensor.zero_();
      }
    }
    CHECK(rank.comms->failure().empty());
  }
}

TEST_CASE("nccl communicators: the host's time for a collective") {
  for (const bool blocking : {true, false}) {
    OneRank rank(blocking);
    const std::vector<CollectiveCall> calls = {
        {Collective::all_gather, rank.zeros(1000), rank.values(1000), 0, "test", {}}};
    constexpr int kCalls = 2000;
    for (int i = 0; i < 100; ++i) rank.start(calls);
    ZR_CUDA(cudaDeviceSynchronize());
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) rank.start(calls);
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    ZR_CUDA(cudaDeviceSynchronize());
    std::printf("%s communicator of one rank: %.1f microseconds of the host per collective\n",
                blocking ? "blocking" : "non-blocking", time.count() / kCalls);
    CHECK(time.count() / kCalls < 1000);
    CHECK_FALSE(rank.watchdog.broken());
  }
}

TEST_CASE("nccl communicators: a collective counts as started when its stream reaches it") {
  OneRank rank;
  rank.start({{Collective::all_gather, rank.zeros(10), rank.values(10), 0, "the first", {}}});
  ZR_CUDA(cudaDeviceSynchronize());
  work_for(300ms);
  const size_t slot = rank.start({{Collective::all_gather, rank.zeros(10), rank.values(10), 0, "test", {}}});
  CHECK_FALSE(rank.probe.started(slot));
  CHECK_FALSE(rank.probe.finished(slot));
  ZR_CUDA(cudaDeviceSynchronize());
  CHECK(rank.probe.started(slot));
  CHECK(rank.probe.finished(slot));
}

TEST_CASE("nccl communicators: registered memory can be freed before or after the communicators") {
  if (!nccl_has_memory()) return;
  at::Tensor kept;
  {
    OneRank rank(false);
    for (bool windows : {false, nccl_features(loaded_nccl().version).windows}) {
      NcclMemory memory(rank.device.location(), size_t{4} << 20, rank.comms);
      const size_t slot = rank.watchdog.begin_on_host("allocation");
      rank.comms->register_memory(memory.get(), size_t{4} << 20, windows, rank.watchdog, slot);
      rank.watchdog.end(slot);
      at::Tensor tensor = std::move(memory).as_tensor(1 << 20, at::kFloat);
      CHECK(tensor.sum().item<float>() == 0);
      rank.start({{Collective::all_gather, tensor, rank.values(1 << 20), 0, "test", {}}});
      CHECK(tensor.equal(rank.values(1 << 20)));
      kept = windows ? tensor : at::Tensor();
      if (!kept.defined()) kept = tensor;
    }
  }
  CHECK(kept.max().item<float>() == (1 << 20) - 1);
}

TEST_CASE("nccl communicators: memory is allocated although LibTorch's cache fills the GPU") {
  if (!nccl_has_memory()) return;
  OneRank rank;
  size_t free = 0;
  size_t total = 0;
  ZR_CUDA(cudaMemGetInfo(&free, &total));
  {
    // Leaves less than the 2 GiB that are asked for below to the driver.
    const auto bytes = static_cast<int64_t>(free) - (int64_t{1} << 30);
    const at::Tensor cached =
        at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(rank.device.location()));
  }
  ZR_CUDA(cudaMemGetInfo(&free, &total));
  REQUIRE(free < size_t{2} << 30);  // the cache still has the memory
  const NcclMemory memory(rank.device.location(), size_t{2} << 30, rank.comms);
  CHECK(memory.get() != nullptr);
  CHECK_THROWS_AS(NcclMemory(rank.device.location(), total, rank.comms), Error);
  CHECK(rank.values(10).sum().item<float>() == 45);
}

TEST_CASE("nccl communicators: watching collectives does not break a capture of a CUDA graph") {
  OneRank rank;
  const at::Tensor values = rank.zeros(10);
  rank.start({{Collective::all_gather, rank.zeros(10), rank.values(10), 0, "test", {}}});
  work_for(300ms);
  rank.start({{Collective::all_gather, rank.zeros(10), rank.values(10), 0, "test", {}}});
  cudaStream_t stream = nullptr;
  ZR_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  ZR_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  ZR_CUDA(cudaMemsetAsync(values.mutable_data_ptr(), 0, values.nbytes(), stream));
  std::this_thread::sleep_for(100ms);  // meanwhile the watchdog asks about the second collective
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  if (graph) ZR_CUDA(cudaGraphDestroy(graph));
  ZR_CUDA(cudaStreamDestroy(stream));
  ZR_CUDA(cudaDeviceSynchronize());
  CHECK_FALSE(rank.watchdog.broken());
}

TEST_CASE("nccl communicators: an abort ends them, and every request after it fails") {
  const bool blocking = GENERATE(true, false);
  OneRank rank(blocking);
  rank.comms->abort();
  CHECK_THROWS_AS(rank.start({{Collective::all_gather, rank.zeros(10), rank.values(10), 0, "test", {}}}),
                  CommError);
  CHECK(rank.watchdog.broken());
  CHECK(rank.values(10).sum().item<float>() == 45);
}

}  // namespace zerorun
