// How settings become each part of Config: rules that join several keys, and defaults that follow from
// others. Used by check_config and load_config, in their thread. What does not fit together is reported, what
// follows is put into the settings.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "config/config_types.h"
#include "config/reader.h"
#include "config/settings.h"

namespace zerorun {

/// The settings of one load, with where to say what is wrong with them.
struct Resolution {
  Settings& settings;
  Diagnostics& diagnostics;
  Purpose purpose = Purpose::check;

  void report(std::string_view path, std::string expected, std::string found, std::string remedy) const;
  void note(std::string_view path, std::string_view text) const;
  void warn(std::string_view path, std::string_view text) const;
  /// Sets `target` to the value of `path`, be it the default.
  template <typename T>
  void read(std::string_view path, T& target) const {
    if (const auto value = settings.get<T>(path)) target = *value;
  }
};

/// `world_size`: absent where the batch sizes are not to be multiplied.
BatchConfig resolve_batch(const Resolution& resolution, std::optional<int> world_size);
std::optional<OptimizerConfig> resolve_optimizer(const Resolution& resolution);
std::optional<SchedulerConfig> resolve_scheduler(const Resolution& resolution);
ZeroConfig resolve_zero(const Resolution& resolution);
PrecisionConfig resolve_precision(const Resolution& resolution);
/// How gradients become those of a step: clipping, and average or sum.
void resolve_gradients(const Resolution& resolution, Config& config);

}  // namespace zerorun
