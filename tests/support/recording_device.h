// A CPU device that emulates streams: it performs every operation at once, in program order, but reports the
// operation's stream and all waits to a StreamChecker. For rank-threads; one device and one communicator for
// each rank.
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
  /// Stream waits for this hand-over do nothing.
  std::optional<Handover> dropped = {};
  /// Host waits whose `what` contains this text do nothing; empty: none.
  std::string dropped_on_host = {};

  StreamChecker checker = {};
  int64_t allocations = 0;
  int64_t frees = 0;
  int64_t live_bytes = 0;  // of device tensors that still have references
  int64_t host_bytes = 0;  // of all host memory allocated so far
  int64_t host_waits = 0;
  int64_t dropped_host_waits = 0;
  std::array<int64_t, kHandovers> waits = {};
};

/// Wraps `inner`, a communicator of rank-threads, and records its operations in `recording`, which outlives
/// the result and everything made with it.
std::shared_ptr<Communicator> make_recording_communicator(std::shared_ptr<Communicator> inner,
                                                          Recording& recording);

/// A second stream of the program, for tests, besides compute (0).
inline constexpr StreamId kSideStream = 5;

}  // namespace zerorun::testing
