// Makes the parts of Config from settings. Applies rules that involve several keys and defaults that depend
// on other keys. Reports conflicts, and adds derived defaults to the settings. Used by check_config and
// load_config in their thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "config/config_types.h"
#include "config/reader.h"
#include "config/settings.h"

namespace zerorun::config {

/// The settings of one load, with the diagnostics about them.
struct Resolution {
  Settings& settings;
  Diagnostics& diagnostics;
  Purpose purpose = Purpose::check;

  void report(std::string_view path, std::string expected, std::string found, std::string remedy) const;
  void note(std::string_view path, std::string_view text) const;
  void warn(std::string_view path, std::string_view text) const;
  /// Sets `target` to the value of `path`, or to its default. Leaves `target` unchanged if there is neither.
  template <typename T>
  void read(std::string_view path, T& target) const {
    if (const auto value = settings.get<T>(path)) target = *value;
  }
  /// Leaves `target` as it is if there is neither a value nor a default.
  template <typename T>
  void read(std::string_view path, std::optional<T>& target) const {
    if (auto value = settings.get<T>(path)) target = std::move(value);
  }
};

/// The mesh that the file or the program wants, or nothing if neither does: all ranks are data ranks.
/// `world_size` is absent if the number of ranks is not known.
std::optional<MeshSizes> resolve_mesh(const Resolution& resolution, std::optional<int> world_size,
                                      const std::optional<MeshSizes>& of_program);
PipelineConfig resolve_pipeline(const Resolution& resolution);
RecomputeConfig resolve_recompute(const Resolution& resolution);
/// Config::sum_group.
int resolve_sum_group(const Settings& settings);
/// The ranks among which a batch is divided.
struct BatchRanks {
  std::optional<int> data;       // absent if the batch sizes are only checked
  std::optional<int> full = {};  // the data ranks of the whole job, if hosts of it are left out
  bool has_mesh = false;         // only some of the ranks are data ranks
};

BatchConfig resolve_batch(const Resolution& resolution, const BatchRanks& ranks);
std::optional<OptimizerConfig> resolve_optimizer(const Resolution& resolution);
std::optional<SchedulerConfig> resolve_scheduler(const Resolution& resolution);
ZeroConfig resolve_zero(const Resolution& resolution);
PythonConfig resolve_python(const Resolution& resolution);
PrecisionConfig resolve_precision(const Resolution& resolution);
MonitoringConfig resolve_monitoring(const Resolution& resolution);
/// Resolves gradient clipping, and how gradients are averaged or summed over ranks.
void resolve_gradients(const Resolution& resolution, Config& config);

}  // namespace zerorun::config
