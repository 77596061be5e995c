// Tests how the timer measures waits and scopes, with fake streams and events whose time the test sets. Needs
// no GPU.
#include "cuda/stream_timer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

namespace {

// All times are in milliseconds. A stream stores the time at which its work will be done, an event the time
// at which it passes.
constexpr double kNever = std::numeric_limits<double>::infinity();
double now = kNever;  // events with a later time have not passed yet
int events = 0;
bool records_fail = false;

struct Stream {
  double done = 0;

  void work(double milliseconds) { done += milliseconds; }
  cudaStream_t handle() { return reinterpret_cast<cudaStream_t>(this); }
};

struct Event {
  double passes = 0;

  cudaEvent_t handle() { return reinterpret_cast<cudaEvent_t>(this); }
};

}  // namespace

// Fakes of the functions of CUDA's runtime that the timer calls.
extern "C" {

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = (new Event)->handle();
  ++events;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  --events;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (records_fail) return cudaErrorLaunchFailure;
  reinterpret_cast<Event*>(event)->passes = reinterpret_cast<Stream*>(stream)->done;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  double& done = reinterpret_cast<Stream*>(stream)->done;
  done = std::max(done, reinterpret_cast<Event*>(event)->passes);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const double from = reinterpret_cast<Event*>(begin)->passes;
  const double to = reinterpret_cast<Event*>(end)->passes;
  if (to > now) return cudaErrorNotReady;
  *milliseconds = static_cast<float>(to - from);
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t) {
  return "an error";
}

const char* cudaGetErrorName(cudaError_t) {
  return "cudaError";
}

}  // extern "C"

namespace zerorun {
namespace {

struct Machine {
  Stream compute;
  std::array<Stream, kStreamLanes> lanes;
  StreamTimer timer;

  explicit Machine(size_t spans = 8)
      : timer({lanes[0].handle(), lanes[1].handle(), lanes[2].handle()}, spans) {
    now = kNever;
  }

  Stream& lane(Lane lane) { return lanes[static_cast<size_t>(lane)]; }
  ::Event record(Stream& stream) { return {stream.done}; }
};

double exposed(const StreamTimes& times, Handover handover) {
  return times.exposed[static_cast<size_t>(handover)];
}

double busy(const StreamTimes& times, Lane lane) {
  return times.busy[static_cast<size_t>(lane)];
}

}  // namespace

TEST_CASE("stream timer: only the time for which compute stands still to wait for a lane is exposed") {
  Machine machine;
  machine.timer.enter(Lane::gather);
  machine.lane(Lane::gather).work(10);
  machine.timer.leave(Lane::gather);
  machine.compute.work(7);
  machine.timer.wait(machine.compute.handle(), machine.record(machine.lane(Lane::gather)).handle(),
                     Handover::gathered);
  StreamTimes times = machine.timer.take();
  CHECK(busy(times, Lane::gather) == 10);
  CHECK(exposed(times, Handover::gathered) == 3);
  machine.timer.wait(machine.compute.handle(), machine.record(machine.lane(Lane::gather)).handle(),
                     Handover::reduced);
  times = machine.timer.take();
  CHECK(busy(times, Lane::gather) == 0);
  CHECK(exposed(times, Handover::gathered) == 0);
  CHECK(exposed(times, Handover::reduced) == 0);
}

TEST_CASE("stream timer: the time that a lane waits does not count as its work") {
  Machine machine;
  machine.compute.work(100);
  machine.timer.enter(Lane::reduce);
  machine.lane(Lane::reduce).work(2);
  machine.timer.wait(Lane::reduce, machine.record(machine.compute).handle());
  machine.lane(Lane::reduce).work(5);
  machine.timer.leave(Lane::reduce);
  machine.compute.work(1000);
  machine.timer.wait(Lane::reduce, machine.record(machine.compute).handle());  // outside of any scope
  const StreamTimes times = machine.timer.take();
  CHECK(busy(times, Lane::reduce) == 7);
  CHECK(times.exposed == StreamTimes{}.exposed);
}

TEST_CASE("stream timer: scopes of several threads on one lane count once") {
  Machine machine;
  machine.timer.enter(Lane::copy);
  machine.lane(Lane::copy).work(2);
  machine.timer.enter(Lane::copy);
  machine.lane(Lane::copy).work(3);
  machine.timer.leave(Lane::copy);
  machine.lane(Lane::copy).work(4);
  machine.timer.leave(Lane::copy);
  machine.timer.leave(Lane::copy);  // ends a scope that was entered before the measurement began
  CHECK(busy(machine.timer.take(), Lane::copy) == 9);
}

TEST_CASE("stream timer: a later take() returns the time of work that has not finished yet") {
  Machine machine;
  now = 15;
  for (const double milliseconds : {10, 20}) {
    machine.timer.enter(Lane::gather);
    machine.lane(Lane::gather).work(milliseconds);
    machine.timer.leave(Lane::gather);
  }
  CHECK(busy(machine.timer.take(), Lane::gather) == 10);
  CHECK(busy(machine.timer.take(), Lane::gather) == 0);
  now = kNever;
  CHECK(busy(machine.timer.take(), Lane::gather) == 20);
}

TEST_CASE("stream timer: passed events are used again, and measurements without an event are counted") {
  Machine machine(2);
  CHECK(events == 4);
  const auto wait_for = [&](double milliseconds) {
    ::Event later{machine.compute.done + milliseconds};
    machine.timer.wait(machine.compute.handle(), later.handle(), Handover::free);
  };
  for (int i = 0; i < 10; ++i) wait_for(1);
  StreamTimes times = machine.timer.take();
  CHECK(exposed(times, Handover::free) == 10);
  CHECK(times.missed == 0);
  now = 0;
  for (int i = 0; i < 5; ++i) wait_for(1);
  CHECK(machine.compute.done == 15);  // waits that are not measured still take place
  machine.timer.enter(Lane::copy);
  machine.timer.leave(Lane::copy);
  times = machine.timer.take();
  CHECK(exposed(times, Handover::free) == 0);
  CHECK(times.missed == 4);
  now = kNever;
  times = machine.timer.take();
  CHECK(exposed(times, Handover::free) == 2);
  CHECK(times.missed == 0);
}

TEST_CASE("stream timer: the end of a scope throws no exception if the GPU fails") {
  Machine machine;
  machine.timer.enter(Lane::copy);
  records_fail = true;
  CHECK_NOTHROW(machine.timer.leave(Lane::copy));
  CHECK_NOTHROW(machine.timer.enter(Lane::copy));
  records_fail = false;
  CHECK_NOTHROW(machine.timer.leave(Lane::copy));
  CHECK(machine.timer.take().missed == 2);
}

TEST_CASE("stream timer: its destructor destroys all events") {
  { const Machine machine; }
  CHECK(events == 0);
}

}  // namespace zerorun
