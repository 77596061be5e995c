#include "monitor/flops_report.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

namespace zerorun {
namespace {

double giga(int64_t flops) {
  return static_cast<double>(flops) / 1e9;
}

// printf into a string.
template <typename... Values>
std::string formatted(const char* format, Values... values) {
  char line[240];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

std::string row_of(std::string name, int64_t count, const FlopsByPhase& flops) {
  name.resize(std::max<size_t>(name.size(), 48), ' ');
  return "\n" + name +
         formatted(" %12lld %16.6f %16.6f %16.6f", static_cast<long long>(count), giga(flops[0]),
                   giga(flops[1]), giga(flops[2]));
}

std::string head_of(const char* name, const char* count) {
  return formatted("\n%-48s %12s %16s %16s %16s", name, count, "forward GFLOP", "backward", "recomputed");
}

int64_t depth_of(const ModuleFlops& module) {
  return module.path.empty() ? 0 : std::ranges::count(module.path, '.') + 1;
}

int64_t model_flops(const ModuleFlops& module) {
  return module.flops[0] + module.flops[1];
}

// The modules with those inside of them.
std::vector<ModuleFlops> with_inner(std::vector<ModuleFlops> modules) {
  std::map<std::string, ModuleFlops*> by_path;
  for (ModuleFlops& module : modules) by_path.emplace(module.path, &module);
  for (size_t index = modules.size(); index-- > 1;) {
    const ModuleFlops& module = modules[index];
    const size_t dot = module.path.rfind('.');
    ModuleFlops& around = *by_path.at(dot == std::string::npos ? "" : module.path.substr(0, dot));
    around.parameters += module.parameters;
    for (size_t phase = 0; phase < module.flops.size(); ++phase) around.flops[phase] += module.flops[phase];
  }
  return modules;
}

std::string most_at(int64_t depth, const std::vector<ModuleFlops>& modules, int64_t count) {
  std::vector<const ModuleFlops*> found;
  for (const ModuleFlops& module : modules) {
    if (depth_of(module) == depth) found.push_back(&module);
  }
  std::ranges::stable_sort(found, std::ranges::greater(),
                           [](const ModuleFlops* module) { return model_flops(*module); });
  if (static_cast<int64_t>(found.size()) > count) found.resize(static_cast<size_t>(count));
  const double all = static_cast<double>(std::max<int64_t>(model_flops(modules.front()), 1));
  std::string text;
  for (const ModuleFlops* module : found) {
    text += text.empty() ? "\nmost model GFLOP at depth " + std::to_string(depth) + ": " : ", ";
    text += module->path + formatted(" %.6f (%.1f %%)", giga(model_flops(*module)),
                                     100 * static_cast<double>(model_flops(*module)) / all);
  }
  return text;
}

std::string table_of(const std::vector<ModuleFlops>& own, const FlopsProfilerConfig& config) {
  if (own.empty()) return "";
  const std::vector<ModuleFlops> modules = with_inner(own);
  std::string text = head_of("module", "parameters");
  int64_t deepest = 0;
  for (const ModuleFlops& module : modules) {
    const int64_t depth = depth_of(module);
    if (config.module_depth >= 0 && depth > config.module_depth) continue;
    deepest = std::max(deepest, depth);
    text += row_of(module.path.empty() ? "(the model)" : module.path, module.parameters, module.flops);
  }
  for (int64_t depth = 1; depth <= deepest && config.top_modules > 0; ++depth)
    text += most_at(depth, modules, config.top_modules);
  return text;
}

}  // namespace

std::string describe(const FlopTotals& totals, int64_t step, int64_t parameters, double seconds,
                     const FlopsProfilerConfig& config) {
  std::string text = formatted(
      "floating-point operations of step %lld on rank 0: model %.6f GFLOP (forward %.6f, backward "
      "%.6f), executed %.6f GFLOP (recomputed %.6f); %lld parameters",
      static_cast<long long>(step), giga(totals.model()), giga(totals.of(FlopPhase::forward)),
      giga(totals.of(FlopPhase::backward)), giga(totals.executed()), giga(totals.of(FlopPhase::recomputed)),
      static_cast<long long>(parameters));
  if (seconds > 0) {
    text += formatted("; in %.3f s, model %.3f and executed %.3f GFLOP/s", seconds,
                      giga(totals.model()) / seconds, giga(totals.executed()) / seconds);
  }
  if (!config.detailed) return text;
  text += head_of("operator", "calls");
  for (const auto& [name, row] : totals.operators) text += row_of(name, row.calls, row.flops);
  return text + table_of(totals.modules, config);
}

}  // namespace zerorun
