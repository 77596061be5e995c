// Reads the log of a run, step by step. It has the places of the lines in memory, not the lines, since a
// log may be long. Where a run was resumed, steps are there twice: the last one counts. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "monitor/run_record.h"

namespace zerorun {

class RunLogReader {
 public:
  /// Opens the log in `folder`. Throws UserError if there is none, or if a line or the run's file is damaged
  /// so that it cannot be known what it was.
  explicit RunLogReader(const std::filesystem::path& folder);

  const RunRecord& run() const { return run_; }
  const std::filesystem::path& folder() const { return folder_; }
  /// Ascending.
  std::vector<int64_t> steps() const;
  /// Those before which an engine has begun, ascending.
  std::vector<int64_t> starts() const;
  /// The record of a step or start that is there. Throws UserError if its line is damaged.
  StepRecord step(int64_t step);
  StepRecord start(int64_t step);
  /// In the order in which they were written. That an engine began counts for the step before its first.
  std::vector<RunEvent> events();
  /// Whether the last line has been cut off, as when the machine stopped. That line is left out.
  bool is_cut_off() const { return is_cut_off_; }

 private:
  struct Place {
    std::streamoff begin;
    int64_t line;  // 1 for the first
  };

  struct Event {
    Place place;
    std::optional<int64_t> next_step = {};  // in the file
  };

  std::string line_at(const Place& place);
  StepRecord read(const Place& place);
  [[noreturn]] void fail(int64_t line, const std::string& why) const;

  std::filesystem::path folder_;
  RunRecord run_;
  std::ifstream file_;
  std::map<int64_t, Place> steps_, starts_;
  std::vector<Event> events_;
  bool is_cut_off_ = false;
};

}  // namespace zerorun
