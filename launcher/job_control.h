// In a job on several hosts, the messages between one host's Job and the launcher: reports of failures, and
// orders to end. Used by the Job on the main thread.
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/heartbeat.h"
#include "launcher/rank_failure.h"

namespace zerorun::launcher {

class JobControl {
 public:
  virtual ~JobControl() = default;

  virtual void append_poll_entries(std::vector<pollfd>& entries) const = 0;
  /// Reads and writes without blocking, and sends heartbeats. Called at least every kControlTick.
  virtual void service() = 0;
  /// Returns the time between SIGTERM and SIGKILL if an order to end the ranks of this host has arrived or
  /// the launcher is lost, else nothing. Returns each order once.
  virtual std::optional<std::chrono::milliseconds> take_order_to_end() = 0;
  virtual void report(const RankFailure& failure) = 0;
  /// Reports a rank that a signal or a debugger has stopped. `description`: from describe_stop().
  virtual void report_stopped(int rank, const std::string& description) = 0;
};

}  // namespace zerorun::launcher
