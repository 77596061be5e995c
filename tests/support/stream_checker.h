// Finds data races that a GPU would have: uses of the same memory on different streams that no wait orders.
// It uses vector clocks (Fidge, Mattern). A use comes after an earlier use on another stream only if its
// stream has waited for an event that was recorded after the earlier use. Owned by one rank's device, used by
// one thread at a time.
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
  static constexpr StreamId kHost = kStreams;  // the host counts as one more stream
  using Clock = std::array<uint64_t, kStreams + 1>;

  /// Registers new memory, which `stream` (or kHost) fills with zeros. Uses of the memory are checked until
  /// remove_memory(), which also makes the host wait for all streams, as cudaFree() does.
  void add_memory(const void* begin, size_t bytes, StreamId stream);
  void remove_memory(const void* begin);
  /// The memory goes back to the system as soon as the work that `waited` stands for is done, without a wait
  /// for the other streams. Uses that may come later are reported.
  void unmap_memory(const void* begin, const Clock& waited);
  bool knows(const void* address) const;

  /// Reports that `stream` reads or writes `bytes` bytes from `begin`. `what` names the operation in
  /// messages.
  void use(const void* begin, size_t bytes, StreamId stream, bool writes, const std::string& what);

  /// Reports that the host reads or writes the bytes at the time of the call.
  void use_by_host(const void* begin, size_t bytes, bool writes, const std::string& what);

  Clock now(StreamId stream);
  static void join(Clock& clock, const Clock& other);
  void wait(const Clock& event, StreamId stream);
  void wait_on_host(const Clock& event);

  /// One message for each race, such as: "compute writes (zero) what gather reads (all_gather of ...), and
  /// nothing puts them in order".
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

  void forget_memory(const void* begin);
  void follow_host(StreamId stream);
  void note(const Use& mine, const Clock& clock);

  std::vector<Memory> memory_;
  std::vector<Use> uses_;
  std::array<Clock, kStreams> clocks_{};
  Clock host_{};
  std::vector<std::string> violations_;
};

}  // namespace zerorun::testing
