// A device on the CPU that behaves like one with streams, as far as the order of things goes: everything
// happens at once and in the order of the program, but a StreamChecker is told on which stream, and who waits
// for whom. For rank-threads; one device and one communicator for each rank.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/cpu_device.h"
#include "tests/support/stream_checker.h"

namespace zerorun::testing {

struct Recording {
  /// Waits of this kind do nothing.
  std::optional<Handover> dropped = {};
  /// Waits of the host for what is called so do nothing.
  std::string dropped_on_host = {};

  StreamChecker checker = {};
  int64_t allocations = 0;  // and those that were freed
  int64_t frees = 0;
  int64_t live_bytes = 0;  // of tensors that somebody still has
  int64_t host_bytes = 0;  // of memory of the host's that was allocated
  int64_t host_waits = 0;
  int64_t dropped_host_waits = 0;
  std::array<int64_t, kHandovers> waits = {};
};

/// Wraps `inner`, a communicator of rank-threads. What happens is told to `recording`, which outlives the
/// result and everything made with it.
std::shared_ptr<Communicator> make_recording_communicator(std::shared_ptr<Communicator> inner,
                                                          Recording& recording);

/// The stream of the program's own that is free for tests, beside compute (0).
inline constexpr StreamId kSideStream = 5;

}  // namespace zerorun::testing
