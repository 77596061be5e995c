// How the work that a device does by itself is ordered: streams, events between them, and the host. Owned by
// a Device; any thread. On a device that does its work in the calling thread (the CPU) every thread is its
// own stream, what was called before is done, and nothing here has an effect.
//
// [Note: streams] A rank has one stream for gathers, one for reductions and one for copies to the host and
// back; the rest runs on whatever stream the program's own operators run on ("compute": a thread's current
// one). Collectives and kernels run on the current stream of the thread that asks for them: StreamScope
// changes it. Work on different streams is ordered by events alone: what hands memory over records one behind
// its last use, who takes it over waits for it. Every such hand-over has a name, and the tests prove that
// each is needed and none is missing.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace zerorun {

/// As the device numbers its streams.
using StreamId = int64_t;

/// The streams of a rank beside compute.
enum class Lane : uint8_t { gather, reduce, copy };
inline constexpr int kStreamLanes = 3;

/// What a wait between streams is for: who hands what to whom.
enum class Handover : uint8_t {
  updated,   // a slice with new values: what wrote it -> its gather, its next update
  released,  // memory of a bucket: its last uses -> the gather that comes there next
  gathered,  // the values of a bucket: gather -> their uses
  unused,    // the values of a bucket: their last uses -> what writes them next
  written,   // gradients in a buffer: hooks -> reduction
  free,      // a gradient buffer: reduction or update -> the next hooks
  reduced,   // sums over ranks: reduction -> norm and update
  measured,  // what a step has come to: norm -> copy to the host
  saved,     // a checkpoint's state: what wrote it -> copy to the host -> what changes it next
  leaving,   // sums over ranks that the host applies: reduction -> copy to the host
  left,      // likewise: copy to the host -> what writes them next
};
inline constexpr int kHandovers = 11;
const char* name_of(Handover handover);

/// A point in the work of a stream. Belongs to what it guards; recording it again moves it on. One that was
/// never recorded has passed.
class Event {
 public:
  class State {
   public:
    virtual ~State() = default;
  };
  std::unique_ptr<State> state;  // the device's own; made when it is first recorded
};

/// Milliseconds of a device's time, as its own clock measured them.
struct StreamTimes {
  std::array<double, kHandovers> exposed{};  // compute stood still for what a hand-over is about
  std::array<double, kStreamLanes> busy{};   // a lane worked: its scopes without its waits
  int64_t missed = 0;                        // waits and scopes that are in neither: too many at a time
};

class Streams {
 public:
  virtual ~Streams() = default;

  /// Whether work goes on after the call that asked for it.
  virtual bool asynchronous() const { return false; }
  /// The calling thread's.
  virtual StreamId current() const { return 0; }
  virtual void set_current(StreamId) {}
  virtual StreamId of(Lane) const { return 0; }

  /// `event` passes when all that `stream` has been given so far is done.
  virtual void record(Event& /*event*/, StreamId /*stream*/) {}
  /// What `stream` is given from now on starts after `event` has passed.
  virtual void wait(const Event& /*event*/, StreamId /*stream*/, Handover) {}
  /// The calling thread goes on after `event` has passed. Throws CommError naming `what` when it has not
  /// within `timeout`.
  virtual void await(const Event& /*event*/, std::chrono::milliseconds /*timeout*/,
                     const std::string& /*what*/) {}

  /// An operator of LibTorch that is about to run on the current stream uses `memory`. For devices that check
  /// the order of uses.
  virtual void note_use(const at::Tensor& /*memory*/, bool /*written*/) {}

  /// Whether waits and scopes are measured from now on; off at first.
  virtual void time(bool /*on*/) {}
  /// What was measured since the last call. What is still under way comes with the next.
  virtual StreamTimes take_times() { return {}; }

  /// A range of the calling thread's time under a name that profilers show.
  virtual void begin_range(const char* /*name*/) {}
  virtual void end_range() {}
};

/// While it lives, the calling thread works on another stream.
class StreamScope {
 public:
  StreamScope(Streams& streams, Lane lane) : streams_(streams), outer_(streams.current()) {
    streams.set_current(streams.of(lane));
  }
  ~StreamScope() { streams_.set_current(outer_); }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  Streams& streams_;
  StreamId outer_;
};

}  // namespace zerorun
