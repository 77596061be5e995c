// Tests the rules by which the engine uses CUDA's streams and contexts, with a fake CUDA runtime and
// LibTorch's real pool of streams. Needs no GPU.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <exception>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cuda/cuda_memory.h"
#include "cuda/cuda_streams.h"
#include "tests/cuda/fake_cuda.h"

// LibTorch's CUDA library, which this test does not load, sets this function.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*function)(DeviceIndex));
}  // namespace c10::cuda::_internal

namespace zerorun::testing {
namespace {

using namespace std::chrono_literals;

constexpr Lane kLanes[] = {Lane::gather, Lane::reduce, Lane::copy};

// The streams of a rank that works on `gpu`.
CudaStreams streams_on(int gpu) {
  cudaSetDevice(gpu);
  return CudaStreams(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu)));
}

struct Fake {
  Fake() {
    c10::cuda::_internal::setHasPrimaryContext(
        [](c10::DeviceIndex gpu) { return fake_cuda().has_context[gpu].load(); });
    reset_fake_cuda();
  }
};

template <typename Body>
void in_new_thread(const Body& body) {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      body();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

TEST_CASE("stream rules: the lanes of an engine are three streams, and no engine destroys one") {
  const Fake fake;
  const int before = fake_cuda().streams_created;
  std::set<cudaStream_t> all;
  for (int engine = 0; engine < 40; ++engine) {
    const CudaStreams streams = streams_on(0);
    std::set<cudaStream_t> lanes;
    for (const Lane lane : kLanes) lanes.insert(streams.handle(streams.of(lane)));
    CHECK(lanes.size() == kStreamLanes);
    all.merge(lanes);
  }
  CHECK(all.size() == 32);  // LibTorch's pool
  CHECK(fake_cuda().streams_destroyed == 0);
  CHECK(fake_cuda().streams_created - before <= 4 * 32);  // the pool has streams of four priorities
}

TEST_CASE("stream rules: lanes differ while other threads take streams from the pool") {
  const Fake fake;
  std::atomic<bool> ends = false;
  std::thread other([&] {
    while (!ends) c10::cuda::getStreamFromPool(/*isHighPriority=*/true, 0);
  });
  int same = 0;
  for (int engine = 0; engine < 20'000; ++engine) {
    const CudaStreams streams = streams_on(0);
    const StreamId gather = streams.of(Lane::gather);
    const StreamId reduce = streams.of(Lane::reduce);
    const StreamId copy = streams.of(Lane::copy);
    same += gather == reduce || gather == copy || reduce == copy;
  }
  ends = true;
  other.join();
  CHECK(same == 0);
}

TEST_CASE("stream rules: a wait in a thread that has set no GPU makes no context on GPU 0") {
  const Fake fake;
  CudaStreams streams = streams_on(1);
  Event event;
  streams.record(event, streams.current());
  REQUIRE_FALSE(fake_cuda().has_context[0]);
  in_new_thread([&] {
    streams.await(event, 1s, "a checkpoint");
    streams.await(event, 1s, "a checkpoint");
  });
  CHECK(fake_cuda().queries == 2);
  CHECK_FALSE(fake_cuda().has_context[0]);
}

TEST_CASE("stream rules: memory that such a thread frees makes no context on GPU 0 either") {
  const Fake fake;
  const CudaStreams streams = streams_on(1);
  int gpu = -1;
  in_new_thread([&] { free_when_idle(1, [&] { cudaGetDevice(&gpu); }); });
  CHECK(gpu == 1);
  CHECK_FALSE(fake_cuda().has_context[0]);
}

TEST_CASE("stream rules: a thread that works on another GPU still works there after a wait or a free") {
  const Fake fake;
  CudaStreams streams = streams_on(1);
  Event event;
  streams.record(event, streams.current());
  in_new_thread([&] {
    cudaSetDevice(0);
    streams.await(event, 1s, "a checkpoint");
    int gpu = -1;
    cudaGetDevice(&gpu);
    CHECK(gpu == 0);
    free_when_idle(1, [] {});
    cudaGetDevice(&gpu);
    CHECK(gpu == 0);
  });
}

TEST_CASE("stream rules: capturing a CUDA graph is refused by name") {
  const Fake fake;
  CudaStreams streams = streams_on(0);
  const Catch::Matchers::StdString::ContainsMatcher expected = Catch::Contains("CUDA graph");
  const StreamId captured = c10::cuda::getStreamFromPool(false, 0).id();
  Event event;
  streams.record(event, streams.of(Lane::gather));
  fake_cuda().captured = streams.handle(captured);
  CHECK_THROWS_WITH(streams.record(event, captured), expected);
  CHECK_THROWS_AS(streams.wait(event, captured, Handover::gathered), UserError);
  CHECK_THROWS_WITH(streams.wait(event, captured, Handover::gathered), expected);
  CHECK_THROWS_WITH(streams.wait(event, c10::cuda::getDefaultCUDAStream(0).id(), Handover::gathered),
                    expected);
  streams.wait(event, streams.of(Lane::reduce), Handover::gathered);
  fake_cuda().captured = nullptr;
  streams.record(event, captured);
}

TEST_CASE("stream rules: a wait of the host does not end a capture of the program's own work") {
  const Fake fake;
  CudaStreams streams = streams_on(0);
  Event event;
  streams.record(event, streams.current());
  streams.await(event, 1s, "the norm");
  CHECK(fake_cuda().mode_of_query == cudaStreamCaptureModeRelaxed);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  CHECK(mode == cudaStreamCaptureModeGlobal);
  cudaThreadExchangeStreamCaptureMode(&mode);
}

TEST_CASE("stream rules: a stream that the program has destroyed is named as such") {
  const Fake fake;
  CudaStreams streams = streams_on(0);
  const StreamId gone = c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(0x9000), 0).id();
  Event event;
  streams.record(event, gone);
  fake_cuda().destroyed = reinterpret_cast<cudaStream_t>(0x9000);
  CHECK_THROWS_WITH(streams.record(event, gone), Catch::Contains("is gone (invalid resource handle)") &&
                                                     Catch::Contains("until the engine is destroyed"));
}

TEST_CASE("stream rules: all memory of a GPU is filled with zeros on one stream") {
  const Fake fake;
  cudaSetDevice(0);
  std::vector<char> memory(100, 'x');
  fill_with_zeros(memory.data(), 50);
  const int before = fake_cuda().streams_created;
  fill_with_zeros(memory.data() + 50, 50);
  CHECK(fake_cuda().streams_created == before);
  CHECK(memory == std::vector<char>(100));
}

TEST_CASE("stream rules: the host notices within a tenth of a millisecond that the GPU has finished") {
  const Fake fake;
  CudaStreams streams = streams_on(0);
  Event event;
  streams.record(event, streams.current());
  fake_cuda().events_pass = false;
  // A busy machine may prolong every pause, so the best of several tries counts.
  int queries = 0;
  for (int attempt = 0; attempt < 10 && queries < 300; ++attempt) {
    bool spins = true;  // await() first spins, and calls its checks only after that
    const int check = streams.add_check([&] {
      if (std::exchange(spins, false)) fake_cuda().queries = 0;
    });
    CHECK_THROWS_AS(streams.await(event, 100ms, "the norm"), CommError);
    streams.remove_check(check);
    queries = fake_cuda().queries;
  }
  CHECK(queries >= 300);
}

}  // namespace zerorun::testing
