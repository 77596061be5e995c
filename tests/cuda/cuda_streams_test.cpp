// Tests streams and events of a GPU: which stream waits for which event.
#include "cuda/cuda_streams.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <sys/mman.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "base/error.h"
#include "cuda/cuda_check.h"
#include "cuda/cuda_device.h"
#include "tests/cuda/gpu_work.h"
#include "tests/cuda/kernel_cases.h"

namespace zerorun::testing {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kLarge = int64_t{16} << 20;  // elements: more than one segment of LibTorch's allocator

// Sets options of LibTorch's allocator, as PYTORCH_CUDA_ALLOC_CONF does.
class AllocatorSettings {
 public:
  explicit AllocatorSettings(const std::string& settings) {
    c10::CachingAllocator::setAllocatorSettings(settings);
  }
  ~AllocatorSettings() { c10::CachingAllocator::setAllocatorSettings("expandable_segments:False"); }
  AllocatorSettings(const AllocatorSettings&) = delete;
  AllocatorSettings& operator=(const AllocatorSettings&) = delete;
};

// One stream writes 1 to memory after 0.2 s, and another stream reads that memory. Returns the value that was
// read. `waits`: the reading stream waits for an event of the writing stream.
float read_across_streams(CudaDevice& device, bool waits) {
  CudaStreams& streams = device.streams();
  const at::Tensor ones = put(device, at::ones({1000}));
  const at::Tensor written = device.allocate(1000, at::kFloat);
  const at::Tensor read = device.allocate(1000, at::kFloat);
  Event ready;
  {
    const StreamScope scope(streams, Lane::gather);
    work_for(200ms);
    device.copy(written, ones);
    streams.record(ready, streams.current());
  }
  if (waits) streams.wait(ready, streams.of(Lane::reduce), Handover::gathered);
  {
    const StreamScope scope(streams, Lane::reduce);
    device.copy(read, written);
  }
  ZR_CUDA(cudaDeviceSynchronize());
  return get(device, read).min().item<float>();
}

}  // namespace

TEST_CASE("cuda streams: an event orders two streams that nothing else orders") {
  CudaDevice device(0);
  CHECK(read_across_streams(device, false) == 0);
  CHECK(read_across_streams(device, true) == 1);
}

TEST_CASE("cuda streams: lanes are three non-blocking streams of high priority") {
  CudaDevice device(0);
  std::set<cudaStream_t> lanes;
  for (const Lane lane : {Lane::gather, Lane::reduce, Lane::copy}) {
    const cudaStream_t stream = device.streams().handle(device.streams().of(lane));
    unsigned flags = 0;
    ZR_CUDA(cudaStreamGetFlags(stream, &flags));
    CHECK((flags & cudaStreamNonBlocking) != 0);
    int priority = 0;
    int lowest = 0;
    int highest = 0;
    ZR_CUDA(cudaStreamGetPriority(stream, &priority));
    ZR_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CHECK(priority < lowest);  // a smaller number is a higher priority
    lanes.insert(stream);
  }
  CHECK(lanes.size() == 3);
}

TEST_CASE("cuda streams: memory cached for the lanes of an engine that is gone can be freed") {
  for (const char* segments : {"expandable_segments:False", "expandable_segments:True"}) {
    const AllocatorSettings settings(segments);
    for (int engine = 0; engine < 3; ++engine) {
      CudaDevice device(0);
      {
        const StreamScope scope(device.streams(), Lane::gather);
        device.allocate_on_stream(kLarge, at::kFloat).fill_(1);
      }
      if (engine > 0) device.empty_cache();  // also frees the memory of the engine before
    }
  }
  ZR_CUDA(cudaDeviceSynchronize());
}

TEST_CASE("cuda streams: recorded uses end before an expandable segment is unmapped") {
  const AllocatorSettings settings("expandable_segments:True");
  CudaDevice device(0);
  CudaStreams& streams = device.streams();
  const at::Tensor read = device.allocate(kLarge, at::kFloat);
  read.fill_(0);  // loads the kernels here
  for (int use = 0; use < 3; ++use) {
    at::Tensor memory;
    Event written;
    {
      const StreamScope scope(streams, Lane::gather);
      memory = device.allocate_on_stream(kLarge, at::kFloat);
      memory.fill_(use + 1);
      streams.record(written, streams.current());
    }
    streams.wait(written, streams.current(), Handover::gathered);
    work_for(200ms);
    device.copy(read, memory);
    device.record_stream(memory, streams.current());
    memory.reset();
    c10::cuda::CUDACachingAllocator::emptyCache();  // as when LibTorch is out of memory: waits for no other
                                                    // stream
    ZR_CUDA(cudaDeviceSynchronize());
    const at::Tensor values = get(device, read);
    CHECK(values.min().item<float>() == use + 1);
    CHECK(values.max().item<float>() == use + 1);
  }
}

TEST_CASE("cuda streams: freed memory of allocate_on_stream() is reused at once, recorded or not") {
  const AllocatorSettings settings("expandable_segments:False");
  CudaDevice device(0);
  device.empty_cache();
  const StreamId compute = device.streams().current();
  const StreamScope scope(device.streams(), Lane::gather);
  at::Tensor memory = device.allocate_on_stream(kLarge, at::kFloat);
  const void* address = memory.const_data_ptr();
  work_for(200ms);
  device.record_stream(memory, compute);
  memory.reset();
  memory = device.allocate_on_stream(kLarge, at::kFloat);
  CHECK(memory.const_data_ptr() == address);
  ZR_CUDA(cudaDeviceSynchronize());
}

TEST_CASE("cuda streams: work of the engine cannot become part of a CUDA graph, other work can") {
  CudaDevice device(0);
  CudaStreams& streams = device.streams();
  Event event;
  streams.record(event, streams.of(Lane::gather));
  const auto program = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, 0);
  const at::Tensor memory = device.allocate(10, at::kFloat);
  ZR_CUDA(cudaDeviceSynchronize());
  ZR_CUDA(cudaStreamBeginCapture(program.stream(), cudaStreamCaptureModeGlobal));
  CHECK_THROWS_WITH(streams.record(event, program.id()), Catch::Contains("CUDA graph"));
  CHECK_THROWS_WITH(streams.wait(event, program.id(), Handover::gathered), Catch::Contains("CUDA graph"));
  std::string error;
  std::thread([&] {
    try {
      streams.await(event, 60s, "a checkpoint");  // does not end the capture
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
  }).join();
  CHECK(error.empty());
  ZR_CUDA(cudaMemsetAsync(memory.mutable_data_ptr(), 0, memory.nbytes(), program.stream()));
  cudaGraph_t graph = nullptr;
  ZR_CUDA(cudaStreamEndCapture(program.stream(), &graph));
  CHECK(graph != nullptr);
  cudaGraphDestroy(graph);
  streams.record(event, program.id());
}

TEST_CASE("cuda streams: a thread that has set no GPU may wait for work and free memory") {
  int count = 0;
  ZR_CUDA(cudaGetDeviceCount(&count));
  CudaDevice device(count - 1);
  Event event;
  device.streams().record(event, device.streams().current());
  at::Tensor memory = device.allocate(10, at::kFloat);
  std::string error;
  std::thread([&] {
    try {
      device.streams().await(event, 60s, "a checkpoint");
      memory.reset();
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
  }).join();
  CHECK(error.empty());
}

TEST_CASE("cuda streams: a copy of memory that pin() has page-locked does not keep the host waiting") {
  CudaDevice device(0);
  const size_t bytes = kLarge * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  const at::Tensor values = at::from_blob(memory, {kLarge}, at::kFloat);
  const at::Tensor there = device.allocate(kLarge, at::kFloat);
  {
    const std::shared_ptr<void> pinned = device.pin(memory, bytes);
    values.fill_(3);
    work_for(200ms);
    const auto start = std::chrono::steady_clock::now();
    device.copy(there, values);
    CHECK(seconds_since(start) < 0.1);  // a copy of other memory would wait for the work before it
    CHECK(get(device, there).min().item<float>() == 3);
  }
  ZR_CUDA(cudaDeviceSynchronize());
  cudaPointerAttributes attributes{};
  ZR_CUDA(cudaPointerGetAttributes(&attributes, memory));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  munmap(memory, bytes);
}

TEST_CASE("cuda streams: a StreamScope selects the stream of LibTorch's operators, in its own thread only") {
  CudaDevice device(0);
  CudaStreams& streams = device.streams();
  const StreamId outer = streams.current();
  const at::Tensor memory = device.allocate(10, at::kFloat);
  memory.fill_(1);  // loads the kernels here, since loading them below could make CUDA wait
  work_for(1ms);
  ZR_CUDA(cudaDeviceSynchronize());
  {
    const StreamScope scope(streams, Lane::reduce);
    CHECK(c10::cuda::getCurrentCUDAStream(0).id() == streams.of(Lane::reduce));
    CHECK(c10::cuda::getCurrentCUDAStream(0).stream() == streams.handle(streams.of(Lane::reduce)));
    StreamId others = -1;
    std::thread([&] { others = streams.current(); }).join();
    CHECK(others == outer);
    work_for(200ms);
    memory.fill_(2);
    CHECK(cudaStreamQuery(streams.handle(streams.of(Lane::reduce))) == cudaErrorNotReady);
    cudaGetLastError();
    CHECK(cudaStreamQuery(streams.handle(outer)) == cudaSuccess);
  }
  CHECK(streams.current() == outer);
  CHECK(get(device, memory).max().item<float>() == 1);  // the outer stream did not wait
  ZR_CUDA(cudaDeviceSynchronize());
  CHECK(get(device, memory).min().item<float>() == 2);
}

TEST_CASE("cuda streams: an event that was never recorded has passed; a second record() moves the event") {
  CudaDevice device(0);
  CudaStreams& streams = device.streams();
  Event event;
  streams.wait(event, streams.current(), Handover::free);
  streams.await(event, 1ms, "nothing");
  streams.record(event, streams.current());
  streams.await(event, 60s, "an idle stream");
  work_for(300ms);
  streams.record(event, streams.current());
  CHECK_THROWS_AS(streams.await(event, 20ms, "work"), CommError);
  streams.await(event, 60s, "work");
}

TEST_CASE("cuda streams: a wait of the host ends at its deadline, and the error names its purpose") {
  CudaDevice device(0);
  CudaStreams& streams = device.streams();
  Event event;
  work_for(1000ms);
  streams.record(event, streams.current());
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(streams.await(event, 250ms, "the norm of step 7"),
                    "the norm of step 7: GPU 0 did not reach this point within 0.25 s");
  CHECK(seconds_since(start) < 0.75);
  ZR_CUDA(cudaDeviceSynchronize());
}

TEST_CASE("cuda streams: a check ends the host's wait at once, until it is removed") {
  CudaDevice device(0);
  CudaStreams& streams = device.streams();
  std::atomic<bool> broken = false;
  const int check = streams.add_check([&] {
    if (broken) throw CommError("aborted");
  });
  Event event;
  work_for(1000ms);
  streams.record(event, streams.current());
  std::thread other([&] {
    std::this_thread::sleep_for(100ms);
    broken = true;
  });
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(streams.await(event, 60s, "work"), "aborted");
  CHECK(seconds_since(start) < 0.6);
  other.join();
  streams.remove_check(check);
  streams.await(event, 60s, "work");
}

TEST_CASE("cuda streams: page-locked memory of any size is filled with zeros, and may be freed anywhere") {
  CudaDevice device(0);
  for (const int64_t numel : {int64_t{1}, int64_t{1000}, (int64_t{1} << 20) + 1, int64_t{64} << 20}) {
    at::Tensor memory = device.allocate_on_host(numel, at::kFloat);
    cudaPointerAttributes attributes{};
    ZR_CUDA(cudaPointerGetAttributes(&attributes, memory.const_data_ptr()));
    CHECK(attributes.type == cudaMemoryTypeHost);
    CHECK(memory.count_nonzero().item<int64_t>() == 0);
    const at::Tensor there = device.allocate(numel, at::kFloat);
    there.fill_(5);
    ZR_CUDA(cudaDeviceSynchronize());
    device.copy(memory, there);
    ZR_CUDA(cudaDeviceSynchronize());
    CHECK(memory.min().item<float>() == 5);
    std::thread([&] { memory.reset(); }).join();
  }
}

TEST_CASE("cuda streams: a bucket's limit is 256 MiB, or 4 MiB from each rank; 32 MiB for a single rank") {
  CudaDevice device(0);
  constexpr int64_t kMebi = int64_t{1} << 20;
  CHECK(device.bucket_bytes(1) == 32 * kMebi);
  CHECK(device.bucket_bytes(8) == 256 * kMebi);
  CHECK(device.bucket_bytes(128) == 512 * kMebi);
}

TEST_CASE("cuda streams: a thread whose current GPU is another one gets an error") {
  int count = 0;
  ZR_CUDA(cudaGetDeviceCount(&count));
  if (count < 2) return;  // needs a second GPU
  CudaDevice device(0);
  std::string error;
  std::thread([&] {
    cudaSetDevice(1);
    Event event;
    try {
      device.streams().record(event, device.streams().current());
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
  }).join();
  CHECK_THAT(error, Catch::Contains("works on GPU 1") && Catch::Contains("set_device(0)"));
}

}  // namespace zerorun::testing
