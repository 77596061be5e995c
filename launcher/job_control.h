// What the Job of one host of several exchanges with the launcher of the whole job: reports of failures, and
// orders to end. Used by the Job on the main thread.
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/heartbeat.h"
#include "launcher/rank_failure.h"

namespace zerorun {

class JobControl {
 public:
  virtual ~JobControl() = default;

  virtual void append_poll_entries(std::vector<pollfd>& entries) const = 0;
  /// Reads and writes without blocking, and sends heartbeats. Called at least every kControlTick.
  virtual void service() = 0;
  /// An order to end the ranks of this host, if one has arrived: the time between SIGTERM and SIGKILL. Also
  /// given when the launcher is lost.
  virtual std::optional<std::chrono::milliseconds> take_order_to_end() = 0;
  virtual void report(const RankFailure& failure) = 0;
  /// `description`: why the rank does not run although it has not ended.
  virtual void report_stopped(int rank, const std::string& description) = 0;
};

}  // namespace zerorun
