#include "report/report_data.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "monitor/run_comparison.h"
#include "report/figures.h"
#include "report/run_facts.h"
#include "report/step_timeline.h"

namespace zerorun {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostMarks = 20'000;  // of a run and a kind

ReportedRun read_run(const std::filesystem::path& folder, const std::string& name) {
  RunLogReader log(folder);
  return {.name = name,
          .record = log.run(),
          .columns = read_columns(log),
          .events = log.events(),
          .is_cut_off = log.is_cut_off()};
}

// The steps that are marked in all figures.
Json marks_of(const ReportedRun& run) {
  Json marks = Json::array();
  const auto add = [&](const char* kind, const std::vector<int64_t>& steps) {
    if (steps.empty()) return;
    marks.push_back(
        {{"kind", kind}, {"run", run.name}, {"count", steps.size()}, {"steps", thinned(steps, kMostMarks)}});
  };
  std::vector<int64_t> restarts, failures;
  for (const RunEvent& event : run.events) {
    if (event.kind == RunEventKind::failed) failures.push_back(event.step);
    if (event.kind == RunEventKind::began && &event != &run.events.front())
      restarts.push_back(event.step + 1);
  }
  add("skipped", run.columns.skipped);
  add("restarted", restarts);
  add("failed", failures);
  return marks;
}

Json parameters_of(const RunRecord& run) {
  Json rows = Json::array();
  for (const LoggedParameter& parameter : run.parameters)
    rows.push_back({parameter.name, parameter.shape, elements_of(parameter), parameter.is_trained});
  return rows;
}

Json describe_run(const ReportedRun& run, const std::filesystem::path& folder) {
  return {{"name", run.name},
          {"folder", folder.string()},
          {"marks", marks_of(run)},
          {"events", events_of(run)},
          {"notes", notes_of(run)},
          {"bars", state_bars(run)},
          {"step", step_timeline_of(run)},
          {"shares_parameters", shares_parameters(run.record)},
          {"parameters", parameters_of(run.record)}};
}

// What `zerorun diff` says of the runs, or why it cannot compare them.
Json comparison_of(const std::filesystem::path& a, const std::filesystem::path& b) {
  try {
    const RunComparison comparison = compare_runs(a, b);
    Json json{{"text", to_text(comparison, a.string(), b.string())}};
    if (!comparison.parting) return json;
    const bool before = comparison.parting->what == Parting::start;
    json["step"] = comparison.parting->step + (before ? 1 : 0);
    json["before"] = before;
    return json;
  } catch (const UserError& refusal) {
    return {{"refusal", refusal.what()}};
  }
}

}  // namespace

std::string report_data(const std::vector<std::filesystem::path>& folders) {
  std::vector<ReportedRun> runs;
  for (const auto& folder : folders)
    runs.push_back(read_run(folder, folders.size() == 1 ? folder.string() : runs.empty() ? "A" : "B"));
  Json data{{"written", now_in_utc()},
            {"runs", Json::array()},
            {"results", results_of(runs)},
            {"job", settings_of_job(runs)},
            {"configuration", configuration_of(runs)},
            {"figures", figures_of(runs)}};
  for (size_t run = 0; run < runs.size(); ++run)
    data["runs"].push_back(describe_run(runs[run], folders[run]));
  if (folders.size() > 1) data["comparison"] = comparison_of(folders[0], folders[1]);
  const std::string text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string escaped;
  for (const char c : text) {
    if (c == '<') {
      escaped += "\\u003c";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace zerorun
