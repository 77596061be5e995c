#include "report/curves.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace zerorun {
namespace {

void add(Column& column, const std::optional<double>& value) {
  column.values.push_back(value.value_or(0));
  column.is_known.push_back(value.has_value());
}

// A category that a step does not name has nothing in it.
template <typename Number>
void add(std::map<std::string, Column>& columns, const std::map<std::string, Number>& values, size_t steps) {
  for (const auto& [name, value] : values) {
    Column& column = columns[name];
    column.label = name;
    column.values.resize(steps, 0);
    column.values.back() = static_cast<double>(value);
  }
}

void complete(std::map<std::string, Column>& columns, size_t steps) {
  for (auto& [name, column] : columns) {
    column.values.resize(steps, 0);
    column.is_known.assign(steps, true);
  }
}

// The samples of one step, from the sums before and after it. They are not known from these where steps are
// missing in the log, or a program has set the sum.
double samples_of(const StepRecord& step, const StepRecord& before, const RunRecord& run) {
  const double difference = static_cast<double>(step.samples) - static_cast<double>(before.samples);
  if (before.step == step.step - 1 && difference > 0) return difference;
  return static_cast<double>(run.micro_batch) * static_cast<double>(run.accumulation) * run.mesh.data;
}

}  // namespace

bool Column::is_known_anywhere() const {
  return std::ranges::find(is_known, true) != is_known.end();
}

RunColumns read_columns(RunLogReader& log) {
  RunColumns run;
  run.steps = log.steps();
  run.loss.label = "loss";
  run.norm.label = "norm";
  run.lr.label = "learning rate";
  run.loss_scale.label = "loss scale";
  run.speed.label = "samples per second";
  run.tokens.label = "tokens per second";
  run.seconds.label = "seconds";
  StepRecord before{.step = -1};
  for (size_t place = 0; place < run.steps.size(); ++place) {
    const StepRecord step = log.step(run.steps[place]);
    if (step.is_skipped) run.skipped.push_back(step.step);
    add(run.loss, step.loss);
    add(run.norm, step.gradient_norm);
    add(run.lr, step.lr);
    add(run.loss_scale, step.loss_scale);
    const double samples = samples_of(step, before, log.run());
    const bool is_timed = step.seconds > 0;
    add(run.speed, is_timed ? std::optional(samples / step.seconds) : std::nullopt);
    add(run.tokens, is_timed && step.tokens ? std::optional(static_cast<double>(*step.tokens) / step.seconds)
                                            : std::nullopt);
    add(run.seconds, step.seconds);
    add(run.bytes, step.bytes, place + 1);
    add(run.sent, step.elements, place + 1);
    run.total_seconds += step.seconds;
    run.samples = step.samples;
    before.step = step.step;
    before.samples = step.samples;
  }
  complete(run.bytes, run.steps.size());
  complete(run.sent, run.steps.size());
  return run;
}

std::vector<size_t> shown_places(const std::vector<const Column*>& columns, size_t steps) {
  const size_t stretches = steps <= kMostPoints
                               ? std::max<size_t>(1, steps)
                               : std::max<size_t>(1, (kMostPoints - 1) / (3 * columns.size() + 1));
  std::vector<size_t> places;
  for (size_t stretch = 0; stretch < stretches && steps > 0; ++stretch) {
    const size_t begin = steps * stretch / stretches, end = steps * (stretch + 1) / stretches;
    places.push_back(begin);
    for (const Column* column : columns) {
      std::optional<size_t> lowest, highest, not_finite;
      for (size_t place = begin; place < end; ++place) {
        const double value = column->values[place];
        if (!column->is_known[place]) continue;
        if (!std::isfinite(value)) {
          if (!not_finite) not_finite = place;
          continue;
        }
        if (!lowest || value < column->values[*lowest]) lowest = place;
        if (!highest || value > column->values[*highest]) highest = place;
      }
      for (const auto& place : {lowest, highest, not_finite}) {
        if (place) places.push_back(*place);
      }
    }
  }
  if (steps > 0) places.push_back(steps - 1);
  std::ranges::sort(places);
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

std::vector<int64_t> thinned(const std::vector<int64_t>& steps, size_t count) {
  if (steps.size() <= count) return steps;
  std::vector<int64_t> some;
  for (size_t i = 0; i < count; ++i) some.push_back(steps[i * steps.size() / count]);
  return some;
}

}  // namespace zerorun
