// Tests the times that streams of a GPU measure.
#include <catch2/catch.hpp>
#include <chrono>

#include "cuda/cuda_check.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_streams.h"
#include "tests/cuda/gpu_work.h"

namespace zerorun::testing {
namespace {

using namespace std::chrono_literals;

}  // namespace

TEST_CASE("cuda streams: measured times show whether compute stood still while it waited") {
  CudaDevice device(0);
  CudaStreams& streams = device.streams();
  const auto gather = static_cast<size_t>(Lane::gather);
  const auto gathered = static_cast<size_t>(Handover::gathered);
  auto measured = [&](std::chrono::milliseconds of_lane, std::chrono::milliseconds of_compute) {
    Event start, ready;
    streams.record(start, streams.current());
    {
      const StreamScope scope(streams, Lane::gather);
      streams.wait(start, streams.current(), Handover::released);
      work_for(of_lane);
      streams.record(ready, streams.current());
    }
    if (of_compute > 0ms) work_for(of_compute);
    streams.wait(ready, streams.current(), Handover::gathered);
    ZR_CUDA(cudaDeviceSynchronize());
    return streams.take_times();
  };
  streams.time(true);
  const StreamTimes alone = measured(200ms, 0ms);
  CHECK(alone.busy[gather] >= 199);
  CHECK(alone.exposed[gathered] > 0.9 * alone.busy[gather]);
  CHECK(alone.exposed[static_cast<size_t>(Handover::released)] == 0);
  const StreamTimes hidden = measured(100ms, 400ms);
  CHECK(hidden.busy[gather] >= 99);
  CHECK(hidden.exposed[gathered] < 0.1 * hidden.busy[gather]);
  CHECK(hidden.missed == 0);
  streams.time(false);
  const StreamTimes nothing = measured(10ms, 0ms);
  CHECK(nothing.busy[gather] == 0);
  CHECK(nothing.exposed[gathered] == 0);
}

TEST_CASE("cuda streams: the time that a lane waits does not count as its work") {
  CudaDevice device(0);
  CudaStreams& streams = device.streams();
  ZR_CUDA(cudaDeviceSynchronize());
  streams.time(true);
  const auto start = std::chrono::steady_clock::now();
  work_for(300ms);
  Event written;
  streams.record(written, streams.current());
  {
    const StreamScope scope(streams, Lane::reduce);
    streams.wait(written, streams.current(), Handover::written);
    work_for(50ms);
  }
  ZR_CUDA(cudaDeviceSynchronize());
  const double whole = seconds_since(start) * 1000;
  const double busy = streams.take_times().busy[static_cast<size_t>(Lane::reduce)];
  CHECK(busy >= 49);
  CHECK(busy < whole / 2);  // about a seventh of `whole`
}

TEST_CASE("cuda streams: waits that find no free event are counted as missed") {
  CudaDevice device(0);
  CudaStreams& streams = device.streams();
  const cudaStream_t compute = streams.handle(streams.current());
  cudaEvent_t passed = nullptr;
  ZR_CUDA(cudaEventCreate(&passed));
  StreamTimer timer({}, 3);
  work_for(300ms);
  for (int i = 0; i < 5; ++i) timer.wait(compute, passed, Handover::reduced);
  CHECK(timer.take().missed == 2);
  ZR_CUDA(cudaDeviceSynchronize());
  for (int i = 0; i < 3; ++i) timer.wait(compute, passed, Handover::reduced);
  CHECK(timer.take().missed == 0);
  ZR_CUDA(cudaEventDestroy(passed));
}

}  // namespace zerorun::testing
