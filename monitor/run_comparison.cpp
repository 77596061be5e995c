#include "monitor/run_comparison.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <string_view>

#include "base/error.h"
#include "monitor/run_log_reader.h"
#include "monitor/step_comparison.h"

namespace zerorun {
namespace {

// Settings that say how a run is done and what it writes, and not what it computes: sections and keys.
constexpr std::string_view kOfNoResult[] = {"zero_optimization",
                                            "zerorun.run_log",
                                            "zerorun.recompute",
                                            "zerorun.mesh",
                                            "activation_checkpointing",
                                            "aio",
                                            "checkpoint",
                                            "csv_monitor",
                                            "tensorboard",
                                            "wandb",
                                            "comet",
                                            "flops_profiler",
                                            "comms_logger",
                                            "pipeline",
                                            "tensor_parallel",
                                            "wall_clock_breakdown",
                                            "memory_breakdown",
                                            "dump_state",
                                            "steps_per_print"};

bool changes_results(std::string_view key) {
  return std::ranges::none_of(kOfNoResult, [&](std::string_view section) {
    return key.starts_with(section) && (key.size() == section.size() || key[section.size()] == '.');
  });
}

std::string describe(const LoggedSetting* setting) {
  if (!setting) return "(not set)";
  return setting->value + (setting->from.empty() ? "" : " (" + setting->from + ")");
}

std::vector<std::string> differences_of(const RunRecord& a, const RunRecord& b) {
  const auto find = [](const RunRecord& run, const std::string& key) {
    const auto found = std::ranges::find(run.settings, key, &LoggedSetting::key);
    return found == run.settings.end() ? nullptr : &*found;
  };
  std::vector<std::string> differences;
  const auto add = [&](const std::string& key) {
    const LoggedSetting *in_a = find(a, key), *in_b = find(b, key);
    if (!changes_results(key) || (in_a && in_b && in_a->value == in_b->value)) return;
    differences.push_back(key + ": " + describe(in_a) + " | " + describe(in_b));
  };
  for (const LoggedSetting& setting : a.settings) add(setting.key);
  for (const LoggedSetting& setting : b.settings) {
    if (!find(a, setting.key)) add(setting.key);
  }
  if (a.optimizer != b.optimizer) differences.push_back("optimizer: " + a.optimizer + " | " + b.optimizer);
  if (a.seed != b.seed)
    differences.push_back("seed of LibTorch's generator: " + std::to_string(a.seed) + " | " +
                          std::to_string(b.seed));
  return differences;
}

std::string shape_of(const LoggedParameter& parameter) {
  std::string text;
  for (const int64_t size : parameter.shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return parameter.name + " [" + text + "]" + (parameter.is_trained ? "" : ", not trained");
}

void check_same_model(const RunRecord& a, const RunRecord& b) {
  const size_t common = std::min(a.parameters.size(), b.parameters.size());
  for (size_t i = 0; i < common; ++i) {
    const std::string one = shape_of(a.parameters[i]), other = shape_of(b.parameters[i]);
    if (one == other) continue;
    throw UserError("the runs have different models, which cannot be compared: parameter " +
                    std::to_string(i) + " is " + one + " | " + other);
  }
  if (a.parameters.size() == b.parameters.size()) return;
  throw UserError(
      "the runs have different models, which cannot be compared: " + std::to_string(a.parameters.size()) +
      " parameters | " + std::to_string(b.parameters.size()));
}

// Why the runs cannot have equal bits though they mean the same.
std::vector<std::string> reasons_of(const RunRecord& a, const RunRecord& b) {
  std::vector<std::string> reasons;
  const auto add = [&](const std::string& what, const std::string& one, const std::string& other,
                       const std::string& why) {
    if (one != other) reasons.push_back(what + " " + one + " | " + other + ": " + why);
  };
  const std::string order = "sums are taken in another order";
  add("data ranks", std::to_string(a.mesh.data), std::to_string(b.mesh.data), order);
  add("tensor ranks", std::to_string(a.mesh.tensor), std::to_string(b.mesh.tensor), order);
  add("pipeline ranks", std::to_string(a.mesh.pipeline), std::to_string(b.mesh.pipeline), order);
  add("replicas", std::to_string(a.mesh.replicate), std::to_string(b.mesh.replicate), order);
  add("micro-batch", std::to_string(a.micro_batch), std::to_string(b.micro_batch), order);
  add("micro-steps per step", std::to_string(a.accumulation), std::to_string(b.accumulation), order);
  const bool is_narrow = a.precision != "fp32";
  if (a.accumulation > 1 && (a.mesh.data > 1 || is_narrow)) {
    const auto when = [](const RunRecord& run) {
      return run.sums_micro_steps ? "in each micro-step" : "once per step";
    };
    add("gradients are summed over ranks", when(a), when(b), order + " (stages 0 and 1, and 2 and 3)");
  }
  add("parameters", a.precision, b.precision, "they are rounded differently");
  if (a.precision == b.precision)
    add("master weights", a.master, b.master, "updates are rounded differently");
  add("devices", a.device, b.device, "kernels differ");
  add("LibTorch", a.libtorch, b.libtorch, "kernels may differ");
  add("LibTorch's kernels for", a.processor, b.processor, "they may differ");
  return reasons;
}

void note_ends(RunComparison& result, RunLogReader& a, RunLogReader& b) {
  const auto note = [&](const RunLogReader& log, const std::string& name) {
    if (log.is_cut_off()) result.notes.push_back("the last line of " + name + " is cut off and left out");
  };
  note(a, "A");
  note(b, "B");
  const std::vector<int64_t> in_a = a.steps(), in_b = b.steps();
  if (in_a.back() != in_b.back())
    result.notes.push_back("A has steps up to " + std::to_string(in_a.back()) + ", B up to " +
                           std::to_string(in_b.back()));
  const bool by_bits = result.reasons.empty();
  if (by_bits && !result.has_hashes)
    result.notes.push_back(std::string(a.run().has_hashes   ? "B has"
                                       : b.run().has_hashes ? "A has"
                                                            : "the logs have") +
                           " no hashes, so no parameter can be named: set zerorun.run_log.hashes to true");
}

// Values at the start of an engine: those of both starts, or of a start in one run and of the end of the same
// step in the other, which shows whether a checkpoint gave back what was saved.
std::optional<PartingStep> compare_start(RunLogReader& a, RunLogReader& b, int64_t step,
                                         const StartPlaces& at) {
  const auto values = [&](RunLogReader& log, bool starts) {
    return starts ? log.start(step).values : log.step(step).values;
  };
  const std::string one = values(a, at.in_a), other = values(b, at.in_b);
  return compare_start_values(step, one, other, a.run());
}

}  // namespace

double default_tolerance(const std::string& precision, const std::string& other) {
  return precision == "fp32" && other == "fp32" ? 1e-5 : 1e-2;
}

RunComparison compare_runs(const std::filesystem::path& first, const std::filesystem::path& second,
                           const ComparisonOptions& options) {
  RunLogReader a(first), b(second);
  check_same_model(a.run(), b.run());
  RunComparison result{.first = a.run(),
                       .second = b.run(),
                       .differences = differences_of(a.run(), b.run()),
                       .reasons = reasons_of(a.run(), b.run())};
  result.has_hashes = result.reasons.empty() && a.run().has_hashes && b.run().has_hashes;
  result.tolerance = options.tolerance.value_or(default_tolerance(a.run().precision, b.run().precision));
  for (const RunLogReader* log : {&a, &b}) {
    if (log->steps().empty()) throw UserError(log->folder().string() + ": the log has no steps yet");
  }
  const std::vector<int64_t> of_a = a.steps(), of_b = b.steps();
  std::vector<int64_t> common;
  std::ranges::set_intersection(of_a, of_b, std::back_inserter(common));
  if (common.empty())
    throw UserError("the runs have no step in common: A has " + std::to_string(of_a.front()) + " to " +
                    std::to_string(of_a.back()) + ", B " + std::to_string(of_b.front()) + " to " +
                    std::to_string(of_b.back()));
  result.steps = static_cast<int64_t>(common.size());
  result.first_step = common.front();
  result.last_step = common.back();
  note_ends(result, a, b);
  const std::map<int64_t, StartPlaces> starts = result.has_hashes
                                                    ? places_of_starts(a.starts(), b.starts(), of_a, of_b)
                                                    : std::map<int64_t, StartPlaces>();
  auto start = starts.begin();
  for (const int64_t step : common) {
    for (; start != starts.end() && start->first < step && !result.parting; ++start)
      result.parting = compare_start(a, b, start->first, start->second);
    if (!result.parting) result.parting = compare_step(a.step(step), b.step(step), result);
    if (result.parting) break;
  }
  return result;
}

}  // namespace zerorun
