// A CPU device that emulates streams. It performs every operation at once, in program order, and reports the
// operation's stream and all waits to a StreamChecker. Each rank-thread has its own device and communicator.
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
  /// If set, streams do not wait at this kind of hand-over, and the test expects the checker to report a
  /// violation.
  std::optional<Handover> dropped = {};
  /// Host waits whose `what` contains this text are left out. If the text is empty, all host waits take
  /// place.
  std::string dropped_on_host = {};

  StreamChecker checker = {};
  int64_t allocations = 0;
  int64_t frees = 0;
  int64_t emptied = 0;                       // calls of empty_cache()
  int64_t live_bytes = 0;                    // of device tensors that are still referenced
  int64_t host_bytes = 0;                    // of all host memory that was ever allocated
  int64_t registered_bytes = 0;              // of all memory that the communicator ever allocated
  int64_t pinned_bytes = 0;                  // of other memory that is page-locked now
  int64_t bucket_bytes = int64_t{32} << 20;  // see Device::bucket_bytes()
  int64_t host_waits = 0;
  int64_t dropped_host_waits = 0;
  std::array<int64_t, kHandovers> waits = {};
};

/// Records the device's operations in `recording`, which must outlive the device and all of its tensors.
std::shared_ptr<Device> make_recording_device(Recording& recording);

/// Wraps `inner`, a communicator of rank-threads, and records its device's operations in `recording`. The
/// recording must outlive the result and all tensors and streams made with it.
std::shared_ptr<Communicator> make_recording_communicator(std::shared_ptr<Communicator> inner,
                                                          Recording& recording);

/// A stream that test programs use besides the compute stream (0).
inline constexpr StreamId kSideStream = 5;

}  // namespace zerorun::testing
