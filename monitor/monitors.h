// The monitors of a run that write files, on the rank that writes: rank 0 of the job. Used by one thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/monitoring_config.h"
#include "monitor/csv_writer.h"
#include "monitor/event.h"
#include "monitor/tensorboard_writer.h"

namespace zerorun {

class Monitors {
 public:
  /// `sink` may be empty. Throws UserError, naming the key, if a monitor's folder cannot be written.
  Monitors(const MonitoringConfig& config, EventSink sink);

  /// Whether an event reaches anything.
  bool any() const { return csv_ || tensorboard_ || sink_; }
  /// If a file cannot be written, or the sink throws, logs a warning: once for each monitor.
  void write(const MonitorEvent& event);

 private:
  EventSink sink_;
  std::optional<CsvWriter> csv_;
  std::optional<TensorBoardWriter> tensorboard_;
  bool csv_failed_ = false;
  bool tensorboard_failed_ = false;
  bool sink_failed_ = false;
};

/// Warnings about enabled monitors that only Python programs have. `has_sink`: this is one, or has a monitor
/// of its own.
std::vector<std::string> warnings_of_monitors(const MonitoringConfig& config, bool has_sink);

/// Throws UserError unless `tag` names events: 1 to 200 characters, none of them a control character.
void check_tag(const std::string& tag);

}  // namespace zerorun
