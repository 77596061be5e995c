#include "report/run_facts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <set>

namespace zerorun {
namespace {

using Json = nlohmann::ordered_json;

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.5g", value);
  return text.data();
}

std::string duration(double seconds) {
  if (!(seconds < 1e15)) return number(seconds) + " s";
  const auto all = static_cast<int64_t>(seconds);
  if (all < 60) return number(seconds) + " s";
  if (all < 3600) return std::to_string(all / 60) + " min " + std::to_string(all % 60) + " s";
  return std::to_string(all / 3600) + " h " + std::to_string(all % 3600 / 60) + " min";
}

std::optional<double> median(const Column& column) {
  std::vector<double> values;
  for (size_t place = 0; place < column.values.size(); ++place) {
    if (column.is_known[place] && std::isfinite(column.values[place])) values.push_back(column.values[place]);
  }
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Over all steps whose time and number are known, slow ones too.
std::optional<double> mean_rate(const Column& rate, const Column& seconds) {
  double amount = 0, time = 0;
  for (size_t place = 0; place < rate.values.size(); ++place) {
    if (!rate.is_known[place]) continue;
    amount += rate.values[place] * seconds.values[place];
    time += seconds.values[place];
  }
  if (time <= 0) return std::nullopt;
  return amount / time;
}

// "9,601; over all steps 2,070"
std::string text_of_rate(const Column& rate, const Column& seconds) {
  const auto middle = median(rate), mean = mean_rate(rate, seconds);
  if (!middle || !mean) return "not known";
  return number(*middle) + "; over all steps " + number(*mean);
}

std::string text_of(const std::optional<double>& value, const std::string& unit = "") {
  return value ? number(*value) + unit : "not known";
}

std::string last_loss(const RunColumns& run) {
  for (size_t place = run.steps.size(); place-- > 0;) {
    if (run.loss.is_known[place]) return number(run.loss.values[place]);
  }
  return "not known: the program calls loss.backward() itself";
}

std::string lowest_loss(const RunColumns& run) {
  std::optional<size_t> lowest;
  for (size_t place = 0; place < run.steps.size(); ++place) {
    const bool counts = run.loss.is_known[place] && std::isfinite(run.loss.values[place]);
    if (counts && (!lowest || run.loss.values[place] < run.loss.values[*lowest])) lowest = place;
  }
  if (!lowest) return "none";
  return number(run.loss.values[*lowest]) + " (step " + whole(run.steps[*lowest]) + ")";
}

std::string describe_steps(const RunColumns& run) {
  if (run.steps.empty()) return "none yet";
  return whole(static_cast<int64_t>(run.steps.size())) + " (" + whole(run.steps.front()) + " to " +
         whole(run.steps.back()) + ")";
}

// Rows of what each run answers.
class Rows {
 public:
  explicit Rows(const std::vector<ReportedRun>& runs) : runs_(runs) {}

  template <typename Answer>
  void add(const std::string& label, const Answer& answer) {
    Json row = {label};
    for (const ReportedRun& run : runs_) row.push_back(answer(run));
    rows_.push_back(std::move(row));
  }
  const Json& rows() const { return rows_; }

 private:
  const std::vector<ReportedRun>& runs_;
  Json rows_ = Json::array();
};

std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string text_of_stage(const RunRecord& run) {
  const auto found = std::ranges::find(run.settings, "zero_optimization.stage", &LoggedSetting::key);
  return found == run.settings.end() ? "not known" : found->value;
}

std::string describe_batch(const RunRecord& run) {
  const auto samples =
      static_cast<double>(run.micro_batch) * static_cast<double>(run.accumulation) * run.mesh.data;
  return number(samples) + " samples: " + whole(run.micro_batch) + " in a micro-batch, " +
         whole(run.accumulation) + (run.accumulation == 1 ? " micro-step, " : " micro-steps, ") +
         std::to_string(run.mesh.data) + (run.mesh.data == 1 ? " data rank" : " data ranks");
}

std::string describe_parameters(const RunRecord& run) {
  double all = 0, trained = 0;
  for (const LoggedParameter& parameter : run.parameters) {
    all += elements_of(parameter);
    if (parameter.is_trained) trained += elements_of(parameter);
  }
  return number(all / 1e6) + " million values in " + whole(static_cast<int64_t>(run.parameters.size())) +
         " tensors" + (trained < all ? ", " + number(trained / 1e6) + " million of them trained" : "");
}

int64_t missing_steps(const RunColumns& run) {
  if (run.steps.empty()) return 0;
  return run.steps.back() - run.steps.front() + 1 - static_cast<int64_t>(run.steps.size());
}

int64_t not_finite(const RunColumns& run, const Column& column) {
  int64_t count = 0;
  for (size_t place = 0; place < column.values.size(); ++place) {
    if (column.is_known[place] && !std::isfinite(column.values[place]) &&
        !std::ranges::binary_search(run.skipped, run.steps[place]))
      ++count;
  }
  return count;
}

}  // namespace

std::string whole(int64_t value) {
  std::string text = std::to_string(value);
  for (auto place = static_cast<int64_t>(text.size()) - 3; place > (value < 0 ? 1 : 0); place -= 3)
    text.insert(static_cast<size_t>(place), ",");
  return text;
}

double elements_of(const LoggedParameter& parameter) {
  double elements = 1;
  for (const int64_t size : parameter.shape) elements *= static_cast<double>(size);
  return elements;
}

Json results_of(const std::vector<ReportedRun>& runs) {
  Rows rows(runs);
  rows.add("Steps", [](const auto& run) { return describe_steps(run.columns); });
  rows.add("Loss of the last step", [](const auto& run) { return last_loss(run.columns); });
  rows.add("Lowest loss", [](const auto& run) { return lowest_loss(run.columns); });
  rows.add("Skipped steps",
           [](const auto& run) { return whole(static_cast<int64_t>(run.columns.skipped.size())); });
  rows.add("Samples", [](const auto& run) { return whole(run.columns.samples); });
  const auto has_tokens = [](const ReportedRun& run) { return run.columns.tokens.is_known_anywhere(); };
  if (std::ranges::any_of(runs, has_tokens))
    rows.add("Tokens per second, median",
             [](const auto& run) { return text_of_rate(run.columns.tokens, run.columns.seconds); });
  rows.add("Samples per second, median",
           [](const auto& run) { return text_of_rate(run.columns.speed, run.columns.seconds); });
  rows.add("Time per step, median",
           [](const auto& run) { return text_of(median(run.columns.seconds), " s"); });
  rows.add("Time in steps", [](const auto& run) { return duration(run.columns.total_seconds); });
  return rows.rows();
}

Json settings_of_job(const std::vector<ReportedRun>& runs) {
  Rows rows(runs);
  rows.add("Started", [](const auto& run) { return run.record.started; });
  rows.add("Ranks", [](const auto& run) {
    const MeshSizes& mesh = run.record.mesh;
    const std::string ranks = std::to_string(run.record.world_size);
    return mesh.tensor > 1 || mesh.pipeline > 1 || mesh.replicate > 1 ? ranks + " (" + describe(mesh) + ")"
                                                                      : ranks;
  });
  rows.add("Hosts", [](const auto& run) { return listed(run.record.hosts); });
  rows.add("Device", [](const auto& run) { return run.record.device; });
  rows.add("Collectives through", [](const auto& run) { return run.record.transport; });
  rows.add("ZeRO stage", [](const auto& run) { return text_of_stage(run.record); });
  rows.add("Parameters", [](const auto& run) { return describe_parameters(run.record); });
  rows.add("Precision", [](const auto& run) {
    const RunRecord& record = run.record;
    return record.precision +
           (record.master == record.precision ? "" : ", master weights in " + record.master);
  });
  rows.add("Optimizer", [](const auto& run) { return run.record.optimizer; });
  rows.add("Batch of a step", [](const auto& run) { return describe_batch(run.record); });
  rows.add("Seed", [](const auto& run) { return std::to_string(run.record.seed); });
  rows.add("LibTorch",
           [](const auto& run) { return run.record.libtorch + ", kernels for " + run.record.processor; });
  return rows.rows();
}

Json configuration_of(const std::vector<ReportedRun>& runs) {
  std::vector<std::string> keys;
  std::set<std::string> seen;
  std::vector<std::map<std::string, const LoggedSetting*>> by_key(runs.size());
  for (size_t run = 0; run < runs.size(); ++run) {
    for (const LoggedSetting& setting : runs[run].record.settings) {
      if (seen.insert(setting.key).second) keys.push_back(setting.key);
      by_key[run][setting.key] = &setting;
    }
  }
  Json rows = Json::array();
  for (const std::string& key : keys) {
    Json row = {key};
    for (const auto& settings : by_key) {
      const auto found = settings.find(key);
      row.push_back(found == settings.end()
                        ? Json()
                        : Json{{"value", found->second->value}, {"from", found->second->from}});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json events_of(const ReportedRun& run) {
  Json rows = Json::array();
  for (const RunEvent& event : run.events) {
    const char* what = event.kind == RunEventKind::began   ? "start"
                       : event.kind == RunEventKind::ended ? "end"
                                                           : "failure";
    rows.push_back({run.name, event.time, event.step, what, event.text});
  }
  return rows;
}

std::vector<std::string> notes_of(const ReportedRun& run) {
  std::vector<std::string> notes;
  if (run.is_cut_off) notes.push_back("The last line of the log is cut off and left out.");
  if (!run.events.empty() && run.events.back().kind == RunEventKind::began)
    notes.push_back(
        "The last engine has not ended: it runs still, or it was killed without a launcher to note it.");
  if (const int64_t missing = missing_steps(run.columns); missing > 0)
    notes.push_back(whole(missing) + (missing == 1 ? " step is" : " steps are") +
                    " missing in the log: it could not be written, or the run went on elsewhere.");
  for (const Column* column : {&run.columns.loss, &run.columns.norm}) {
    const int64_t count = not_finite(run.columns, *column);
    if (count == 0) continue;
    notes.push_back("The " + std::string(column == &run.columns.loss ? "loss" : "gradient norm") +
                    " is infinite or NaN in " + whole(count) +
                    (count == 1 ? " step that was not skipped." : " steps that were not skipped."));
  }
  return notes;
}

}  // namespace zerorun
