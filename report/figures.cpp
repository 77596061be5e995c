#include "report/figures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "zero/stage.h"

namespace zerorun {
namespace {

// With it, gradients are reduced once a step at every stage, but only if the program has given a list of
// layers, which the log does not say. So there is no formula.
bool asks_for_windows(const RunRecord& run) {
  return std::ranges::any_of(run.settings, [](const LoggedSetting& setting) {
    return setting.key == "pipeline.reduce" && setting.value == R"("window")";
  });
}

using Json = nlohmann::ordered_json;

constexpr double kMiB = 1 << 20;
constexpr double kMostElements = 1e15;  // a damaged log may say more
constexpr const char* kInFiles = "in_files";

int stage_of(const RunRecord& run) {
  const auto found = std::ranges::find(run.settings, "zero_optimization.stage", &LoggedSetting::key);
  return found == run.settings.end() ? 0 : std::clamp(std::atoi(found->value.c_str()), 0, 3);
}

struct Figure {
  std::string id, title, about;
  bool is_stacked = false;
};

Json as_json(const Figure& figure, const std::vector<std::string>& labels, const Json& rows, size_t steps) {
  return {
      {"id", figure.id},  {"title", figure.title}, {"about", figure.about}, {"stacked", figure.is_stacked},
      {"labels", labels}, {"rows", rows},          {"steps", steps}};
}

Json value_at(const Column& column, size_t place) {
  return column.is_known[place] ? number_in_figure(column.values[place]) : Json();
}

// How often a step reduces the gradients of the whole model, and gathers its parameters.
struct Transfers {
  int64_t reductions = 1, gathers = 1;
};

Transfers transfers_of(const RunRecord& run) {
  const StagePolicy policy = policy_of(stage_of(run));
  // Forward and backward gather each bucket, unless ranks share the parameters.
  return {.reductions = policy.reduce_every_backward ? run.accumulation : 1,
          .gathers = policy.partition_parameters && !shares_parameters(run) ? 2 * run.accumulation : 1};
}

// One curve of each run.
void add_curves(Json& figures, const Figure& figure, const std::vector<ReportedRun>& runs,
                Column RunColumns::*member) {
  std::map<int64_t, std::vector<Json>> rows;
  std::vector<std::string> labels;
  size_t steps = 0;
  bool is_known = false;
  for (size_t run = 0; run < runs.size(); ++run) {
    const RunColumns& columns = runs[run].columns;
    const Column& column = columns.*member;
    is_known = is_known || column.is_known_anywhere();
    labels.push_back(runs.size() > 1 ? runs[run].name : column.label);
    steps = std::max(steps, columns.steps.size());
    for (const size_t place : shown_places({&column}, columns.steps.size())) {
      std::vector<Json>& row = rows[columns.steps[place]];
      row.resize(runs.size());
      row[run] = value_at(column, place);
    }
  }
  if (!is_known) return;
  Json list = Json::array();
  for (const auto& [step, values] : rows) {
    Json row = {step};
    for (const Json& value : values) row.push_back(value);
    list.push_back(row);
  }
  figures.push_back(as_json(figure, labels, list, steps));
}

// Several curves of one run.
void add_curves(Json& figures, const Figure& figure, const ReportedRun& run,
                const std::vector<const Column*>& columns) {
  if (columns.empty()) return;
  std::vector<std::string> labels;
  for (const Column* column : columns) labels.push_back(column->label);
  Json rows = Json::array();
  for (const size_t place : shown_places(columns, run.columns.steps.size())) {
    Json row = {run.columns.steps[place]};
    for (const Column* column : columns) row.push_back(value_at(*column, place));
    rows.push_back(row);
  }
  figures.push_back(as_json(figure, labels, rows, run.columns.steps.size()));
}

// "of A" if there are several.
std::string of_run(const ReportedRun& run, size_t runs) {
  return runs > 1 ? " of " + run.name : "";
}

void add_memory(Json& figures, const ReportedRun& run, size_t runs) {
  std::vector<Column> columns;
  // Model states below, as in the bars.
  for (const char* name :
       {"parameters", "gradients", "master", "moments", "buckets", "buffers", "gathered", "on_host"}) {
    const auto found = run.columns.bytes.find(name);
    if (found == run.columns.bytes.end()) continue;
    columns.push_back(found->second);
    for (double& value : columns.back().values) value /= kMiB;
    std::ranges::replace(columns.back().label, '_', ' ');
  }
  std::vector<const Column*> pointers;
  for (const Column& column : columns) pointers.push_back(&column);
  add_curves(figures,
             {"memory" + of_run(run, runs), "Memory of rank 0" + of_run(run, runs) + ", in MiB",
              "By category at the end of each step, one above the other. Activations are not counted.", true},
             run, pointers);
}

void add_sent(Json& figures, const ReportedRun& run, size_t runs) {
  Column all{.label = "all", .values = std::vector<double>(run.columns.steps.size(), 0)};
  std::vector<const Column*> columns;
  for (const auto& [kind, column] : run.columns.sent) {
    columns.push_back(&column);
    std::ranges::transform(all.values, column.values, all.values.begin(), std::plus());
  }
  if (columns.empty()) return;
  all.is_known.assign(all.values.size(), true);
  columns.push_back(&all);
  const double expected = formula_elements(run.record);
  Column formula{.label = "formula",
                 .values = std::vector<double>(all.values.size(), expected),
                 .is_known = all.is_known};
  if (expected > 0) columns.push_back(&formula);
  const int64_t micro_steps = run.record.accumulation;
  std::string about = "There is no formula for this mesh.";
  if (expected > 0) {
    const Transfers transfers = transfers_of(run.record);
    const std::string ranks = std::to_string(run.record.mesh.data);
    about = "The formula for stage " + std::to_string(stage_of(run.record)) + " and " +
            std::to_string(micro_steps) + (micro_steps == 1 ? " micro-step" : " micro-steps") + ", " +
            whole(std::llround(expected)) + ": (" + whole(transfers.reductions) + " reduced + " +
            whole(transfers.gathers) + " gathered) x trained parameters x (" + ranks + " - 1) / " + ranks +
            ", without padding and the small sums of norms and losses." +
            (shares_parameters(run.record) ? " Ranks that share parameters in memory gather once." : "");
  }
  add_curves(figures,
             {"sent" + of_run(run, runs), "Elements that rank 0 sends in a step" + of_run(run, runs),
              "An element has 4 bytes in fp32, 2 in bf16 and fp16. " + about},
             run, columns);
}

// " gradient_clipping 1 has shortened that of 12 of 40 steps." Of two runs each.
std::string clipped_of(const std::vector<ReportedRun>& runs) {
  std::string text;
  for (const ReportedRun& run : runs) {
    const auto setting = std::ranges::find(run.record.settings, "gradient_clipping", &LoggedSetting::key);
    if (setting == run.record.settings.end()) continue;
    const double most = std::atof(setting->value.c_str());
    if (most <= 0) continue;
    const Column& norm = run.columns.norm;
    int64_t clipped = 0;
    for (const double value : norm.values) clipped += std::isfinite(value) && value > most ? 1 : 0;
    text += " gradient_clipping " + setting->value + " has shortened the gradient of " + whole(clipped) +
            " of " + whole(std::ssize(norm.values)) + " steps" + of_run(run, runs.size()) + ".";
  }
  return text;
}

}  // namespace

Json number_in_figure(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.7g", value);
  return std::strtod(text.data(), nullptr);
}

Json figures_of(const std::vector<ReportedRun>& runs) {
  Json figures = Json::array();
  add_curves(figures, {"loss", "Loss", "The mean over micro-steps and data ranks."}, runs, &RunColumns::loss);
  add_curves(figures,
             {"norm", "Gradient norm", "The 2-norm over all ranks, before clipping." + clipped_of(runs)},
             runs, &RunColumns::norm);
  add_curves(figures, {"lr", "Learning rate", "Of the first parameter group."}, runs, &RunColumns::lr);
  add_curves(figures,
             {"scale", "Loss scale", "Under fp16. A step with infinite gradients is skipped, and lowers it."},
             runs, &RunColumns::loss_scale);
  add_curves(figures, {"tokens", "Tokens per second", "Of all ranks together."}, runs, &RunColumns::tokens);
  add_curves(figures, {"speed", "Samples per second", "Of all ranks together."}, runs, &RunColumns::speed);
  add_curves(figures,
             {"seconds", "Seconds per step",
              "From the end of one step to the end of the next, with all that the program does in between."},
             runs, &RunColumns::seconds);
  for (const ReportedRun& run : runs) add_memory(figures, run, runs.size());
  for (const ReportedRun& run : runs) add_sent(figures, run, runs.size());
  return figures;
}

Json state_bars(const ReportedRun& run) {
  Json bars = Json::array();
  const auto add = [&](const std::string& label, bool is_own, double parameters, double gradients,
                       double optimizer, double rest) {
    bars.push_back({{"label", label},
                    {"own", is_own},
                    {"values", {parameters / kMiB, gradients / kMiB, optimizer / kMiB, rest / kMiB}}});
  };
  const auto& bytes = run.columns.bytes;
  const auto at = [&](const char* name, size_t place) {
    const auto found = bytes.find(name);
    return found == bytes.end() ? 0 : found->second.values[place];
  };
  const auto all_at = [&](size_t place) {
    double sum = 0;
    for (const auto& [name, column] : bytes) sum += name == kInFiles ? 0 : column.values[place];
    return sum;
  };
  if (bytes.empty()) return bars;
  size_t most = 0;
  for (size_t place = 1; place < run.columns.steps.size(); ++place) {
    if (all_at(place) > all_at(most)) most = place;
  }
  if (run.record.states && run.record.mesh.data > 0 && run.record.states->parameters < kMostElements &&
      !asks_for_windows(run.record)) {
    const LoggedStates& states = *run.record.states;
    const auto parameters = static_cast<int64_t>(states.parameters);
    for (int stage = 0; stage <= 3; ++stage) {
      const bool is_divided = stage == 3 || (stage > 0 && shares_parameters(run.record));
      const auto part = [&](double value, double gradient, double optimizer) {
        return model_state_bytes(parameters, is_divided ? 0 : parameters, 0, run.record.mesh.shards(),
                                 policy_of(stage),
                                 {.value = static_cast<int64_t>(value),
                                  .gradient = static_cast<int64_t>(gradient),
                                  .moments = optimizer});
      };
      add("stage " + std::to_string(stage) + ", formula", stage == stage_of(run.record),
          part(states.value, 0, 0), part(0, states.gradient, 0), part(0, 0, states.master + states.moments),
          0);
    }
  }
  const double parameters = at("parameters", most), gradients = at("gradients", most),
               optimizer = at("master", most) + at("moments", most);
  add("measured, step " + std::to_string(run.columns.steps[most]), true, parameters, gradients, optimizer,
      all_at(most) - parameters - gradients - optimizer);
  return bars;
}

bool shares_parameters(const RunRecord& run) {
  return run.transport == "shared memory" && run.mesh.shards() > 1;
}

double formula_elements(const RunRecord& run) {
  const int ranks = run.mesh.data;
  // Fewer gathers, or bytes instead of elements.
  const bool sends_otherwise = std::ranges::any_of(run.settings, [](const LoggedSetting& setting) {
    const bool is_one = setting.value == "1" || setting.value == "0";
    return (setting.key == "zero_optimization.zero_hpz_partition_size" && !is_one) ||
           (setting.key.starts_with("zero_optimization.zero_quantized_") && setting.value == "true");
  });
  if (ranks < 2 || run.mesh.tensor > 1 || run.mesh.pipeline > 1 || run.mesh.replicate > 1 ||
      sends_otherwise || asks_for_windows(run))
    return 0;
  double parameters = 0;
  for (const LoggedParameter& parameter : run.parameters) {
    if (parameter.is_trained) parameters += elements_of(parameter);
  }
  const Transfers transfers = transfers_of(run);
  return static_cast<double>(transfers.reductions + transfers.gathers) * parameters * (ranks - 1) / ranks;
}

}  // namespace zerorun
