// Orders a device's asynchronous work: streams, events between streams, and waits of the host. Owned by a
// Device; any thread. On a device that works in the calling thread (the CPU) calls are synchronous, every
// thread is its own stream, and nothing here has an effect.
//
// [Note: streams] A rank has one stream for all-gathers, one for reductions and one for copies to the host
// and back; everything else runs on the stream of the program's own operators ("compute": a thread's current
// stream). Collectives and kernels run on the calling thread's current stream, which StreamScope changes.
// Events alone order work on different streams: the stream that hands memory over records an event after its
// last use, and the stream that takes it over waits for the event. Every such hand-over has a name, and tests
// prove that each is needed and none is missing.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace zerorun {

/// The device's own id of a stream.
using StreamId = int64_t;

/// The streams of a rank besides compute.
enum class Lane : uint8_t { gather, reduce, copy };
inline constexpr int kStreamLanes = 3;

/// The purpose of a wait between streams. Each comment names the data that is handed over, and the work
/// before -> after the hand-over.
enum class Handover : uint8_t {
  updated,   // a slice's new values or directions (Muon): their writer -> the slice's gather, its next update
  released,  // a bucket's memory: its last uses -> the next gather into it
  gathered,  // a bucket's values: gather -> their uses
  unused,    // a bucket's values: their last uses -> their next writer
  written,   // gradients in a buffer: hooks -> reduction
  free,      // a gradient buffer: reduction or update -> the next hooks
  reduced,   // reduced gradients: reduction -> norm and update
  measured,  // a step's facts: norm -> copy to the host
  saved,     // a checkpoint's state: its writer -> copy to the host -> its next writer
  to_host,   // reduced gradients for an update on the host: reduction -> copy to the host
  on_host,   // the same gradients: copy to the host -> their next writer
};
inline constexpr int kHandovers = 11;
const char* name_of(Handover handover);

/// A point in a stream's work. Owned by the object that it guards; recording it again moves it. An event that
/// was never recorded counts as passed.
class Event {
 public:
  class State {
   public:
    virtual ~State() = default;
  };
  std::unique_ptr<State> state;  // device-specific; created by the first record()
};

/// Times in milliseconds, measured by the device's clock.
struct StreamTimes {
  std::array<double, kHandovers> exposed{};  // by hand-over: how long the compute stream waited
  std::array<double, kStreamLanes> busy{};   // by lane: its stream's time in StreamScopes, without waits
  int64_t missed = 0;  // waits and scopes not measured, for example because too many overlapped
};

class Streams {
 public:
  virtual ~Streams() = default;

  /// Whether work may still run after the call that started it returns.
  virtual bool asynchronous() const { return false; }
  /// The calling thread's current stream.
  virtual StreamId current() const { return 0; }
  virtual void set_current(StreamId) {}
  virtual StreamId of(Lane) const { return 0; }

  /// `event` passes when all work given to `stream` so far is done.
  virtual void record(Event& /*event*/, StreamId /*stream*/) {}
  /// Work given to `stream` from now on starts after `event` has passed.
  virtual void wait(const Event& /*event*/, StreamId /*stream*/, Handover) {}
  /// Blocks the calling thread until `event` has passed. Throws CommError naming `what` after `timeout`.
  virtual void await(const Event& /*event*/, std::chrono::milliseconds /*timeout*/,
                     const std::string& /*what*/) {}

  /// Reports that a LibTorch operator about to run on the current stream uses `memory`. For devices that
  /// check the order of uses.
  virtual void note_use(const at::Tensor& /*memory*/, bool /*written*/) {}

  /// Switches the measurement of waits and scopes on or off; initially off.
  virtual void time(bool /*on*/) {}
  /// The times measured since the last call. Work that still runs is included in the next call.
  virtual StreamTimes take_times() { return {}; }

  /// Begins a named range of the calling thread's time, which profilers show.
  virtual void begin_range(const char* /*name*/) {}
  virtual void end_range() {}
};

/// While it exists, the stream of `lane` is the calling thread's current stream.
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
