// Recomputation of activations: from the file's zerorun.recompute and activation_checkpointing.
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "config/sections.h"

namespace zerorun::config {
namespace {

constexpr std::string_view section_key = "zerorun.recompute";
constexpr std::string_view every_key = "zerorun.recompute.every";
constexpr std::string_view patterns_key = "zerorun.recompute.patterns";
constexpr std::string_view budget_key = "zerorun.recompute.budget";

// "1.5G" as bytes.
std::optional<int64_t> bytes_of(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  constexpr std::string_view units = "KMGT";
  const size_t power = unit.empty() ? 0 : units.find(unit.front()) + 1;
  if (unit.size() > 1 || (!unit.empty() && power == 0)) return std::nullopt;
  for (size_t factor = 0; factor < power; ++factor) number *= 1024;
  if (!(number >= 0 && number < static_cast<double>(std::numeric_limits<int64_t>::max())))
    return std::nullopt;
  return static_cast<int64_t>(number);
}

void check_one_choice(const Resolution& resolution) {
  std::string given;
  int count = 0;
  for (const std::string_view key : {every_key, patterns_key, budget_key}) {
    if (!resolution.settings.find(key)) continue;
    given += (given.empty() ? "" : ", ") + std::string(name_of(key));
    ++count;
  }
  if (count == 1) return;
  resolution.report(section_key, "one of every, patterns and budget", count == 0 ? "none of them" : given,
                    "write the one that shall decide");
}

}  // namespace

RecomputeConfig resolve_recompute(const Resolution& resolution) {
  const Settings& settings = resolution.settings;
  RecomputeConfig config;
  if (settings.find(section_key)) {
    check_one_choice(resolution);
    resolution.read(every_key, config.every);
    resolution.read(patterns_key, config.patterns);
    resolution.read("zerorun.recompute.nvme_path", config.nvme_path);
    if (const auto text = settings.get<std::string>(budget_key)) {
      config.budget = bytes_of(*text);
      if (!config.budget)
        resolution.report(budget_key, "a number of bytes", in_quotes(*text),
                          std::string(row_of(budget_key).advice));
    }
  } else if (settings.find("activation_checkpointing")) {
    config.every = 1;
    config.is_implied = true;
  }
  resolution.read("activation_checkpointing.partition_activations", config.partitioned);
  resolution.read("activation_checkpointing.cpu_checkpointing", config.on_host);
  resolution.read("activation_checkpointing.contiguous_memory_optimization", config.contiguous);
  config.checkpoints = settings.get<int64_t>("activation_checkpointing.number_checkpoints");
  resolution.read("activation_checkpointing.profile", config.timed);
  return config;
}

}  // namespace zerorun::config
