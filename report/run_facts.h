// Tables of a report about runs: what they were, and what they gave. Pure functions; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/curves.h"

namespace zerorun {

/// A run that a report is about.
struct ReportedRun {
  std::string name;  // "A", or that of its folder if it is the only one
  RunRecord record;
  RunColumns columns;
  std::vector<RunEvent> events;
  bool is_cut_off = false;  // the last line of its log
};

/// "12,345,678"
std::string whole(int64_t value);

/// Of a whole parameter.
double elements_of(const LoggedParameter& parameter);

/// Rows of a label and a text of each run.
nlohmann::ordered_json results_of(const std::vector<ReportedRun>& runs);
nlohmann::ordered_json settings_of_job(const std::vector<ReportedRun>& runs);
/// Rows of a key, and for each run its value and where that is from; null: the run does not have it.
nlohmann::ordered_json configuration_of(const std::vector<ReportedRun>& runs);
/// Rows of the run's name, time, step, what happened, and more about it.
nlohmann::ordered_json events_of(const ReportedRun& run);
/// What a reader of the log should know, a sentence each.
std::vector<std::string> notes_of(const ReportedRun& run);

}  // namespace zerorun
