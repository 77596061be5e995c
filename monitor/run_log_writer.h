// Writes the log of a run: PATH/run.json, and a line for each step in PATH/steps.jsonl. Whole lines only, so
// that a reader never sees a part of one, except where the machine itself has stopped. A log that exists is
// continued. Used by one thread.
#pragma once

#include <filesystem>
#include <string_view>

#include "monitor/append_file.h"
#include "monitor/run_record.h"

namespace zerorun {

class RunLogWriter {
 public:
  /// Creates the folder `path` and the file of steps in it. Throws UserError, naming the key.
  explicit RunLogWriter(const std::filesystem::path& path);

  /// Replaces run.json. Throws UserError.
  void write(const RunRecord& run);
  /// Appends a line. If it cannot be written, logs a warning, once.
  void write(const StepRecord& step);
  void write(const RunEvent& event);

 private:
  void append(std::string_view line);

  std::filesystem::path folder_;
  AppendFile steps_;
  bool failed_ = false;
};

/// Appends an event to the log in `folder`, which its ranks no longer write; nothing if it has gone. Throws
/// UserError.
void append_event(const std::filesystem::path& folder, const RunEvent& event);

}  // namespace zerorun
