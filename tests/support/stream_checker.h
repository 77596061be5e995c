// Watches in which order streams use memory, and tells of every two uses that nothing puts in order: what a
// wait that is missing would let happen on a GPU. Vector clocks (Fidge, Mattern): a use is in order with an
// earlier one where its stream has waited for an event recorded behind that. Owned by one rank's device; used
// by one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "device/streams.h"

namespace zerorun::testing {

class StreamChecker {
 public:
  static constexpr int kStreams = 8;
  static constexpr StreamId kHost = kStreams;  // as if it were one more
  using Clock = std::array<uint64_t, kStreams + 1>;

  /// Memory whose uses count from now on, new and used by `stream`, or kHost; no longer, after all streams
  /// have ended what they do.
  void add_memory(const void* begin, size_t bytes, StreamId stream);
  void remove_memory(const void* begin);
  bool knows(const void* address) const;

  /// `stream` uses these bytes. What it does with them is in `what`, for messages.
  void use(const void* begin, size_t bytes, StreamId stream, bool writes, const std::string& what);

  /// The host itself does, now.
  void use_by_host(const void* begin, size_t bytes, bool writes, const std::string& what);

  Clock now(StreamId stream);
  void wait(const Clock& event, StreamId stream);
  void wait_on_host(const Clock& event);

  /// "compute writes (zero) what gather reads (all_gather of ...), and nothing puts them in order"
  const std::vector<std::string>& violations() const { return violations_; }

 private:
  struct Memory {
    uintptr_t begin;
    uintptr_t end;
  };
  struct Use {
    uintptr_t begin;
    uintptr_t end;
    StreamId stream;
    uint64_t time;
    bool writes;
    std::string what;
  };

  void follow_host(StreamId stream);
  void note(const Use& mine, const Clock& clock);

  std::vector<Memory> memory_;
  std::vector<Use> uses_;
  std::array<Clock, kStreams> clocks_{};
  Clock host_{};
  std::vector<std::string> violations_;
};

}  // namespace zerorun::testing
