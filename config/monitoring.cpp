#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/sections.h"

namespace zerorun::config {
namespace {

void read_files(const Resolution& resolution, const std::string& section, FileMonitorConfig& files) {
  resolution.read(section + ".enabled", files.enabled);
  resolution.read(section + ".output_path", files.output_path);
  resolution.read(section + ".job_name", files.job_name);
}

WandbConfig resolve_wandb(const Resolution& resolution) {
  WandbConfig wandb;
  resolution.read("wandb.enabled", wandb.enabled);
  resolution.read("wandb.group", wandb.group);
  resolution.read("wandb.team", wandb.team);
  resolution.read("wandb.project", wandb.project);
  return wandb;
}

CometConfig resolve_comet(const Resolution& resolution) {
  CometConfig comet;
  resolution.read("comet.enabled", comet.enabled);
  resolution.read("comet.samples_log_interval", comet.samples_log_interval);
  resolution.read("comet.project", comet.project);
  resolution.read("comet.workspace", comet.workspace);
  resolution.read("comet.api_key", comet.api_key);
  resolution.read("comet.experiment_name", comet.experiment_name);
  resolution.read("comet.experiment_key", comet.experiment_key);
  resolution.read("comet.online", comet.online);
  resolution.read("comet.mode", comet.mode);
  return comet;
}

// Of comm/communicator.h. A longer name of DeepSpeed begins with one of these: all_gather_into_tensor.
constexpr std::string_view communication_kinds[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                                    "barrier",    "send",       "receive"};

void check_kinds(const Resolution& resolution, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto is_kind = [&](std::string_view kind) { return name.starts_with(kind); };
    if (std::ranges::any_of(communication_kinds, is_kind)) continue;
    resolution.warn("comms_logger.prof_ops",
                    in_quotes(name) +
                        " records nothing: write all_reduce, all_gather, reduce_scatter, broadcast, "
                        "barrier, send or receive");
  }
}

CommsLoggerConfig resolve_comms(const Resolution& resolution) {
  CommsLoggerConfig comms;
  const std::string section = "comms_logger";
  resolution.read(section + ".enabled", comms.enabled);
  resolution.read(section + ".verbose", comms.verbose);
  resolution.read(section + ".prof_all", comms.prof_all);
  resolution.read(section + ".debug", comms.debug);
  resolution.read(section + ".prof_ops", comms.prof_ops);
  check_kinds(resolution, comms.prof_ops);
  return comms;
}

FlopsProfilerConfig resolve_flops(const Resolution& resolution) {
  FlopsProfilerConfig flops;
  resolution.read("flops_profiler.enabled", flops.enabled);
  resolution.read("flops_profiler.profile_step", flops.profile_step);
  resolution.read("flops_profiler.detailed", flops.detailed);
  resolution.read("flops_profiler.module_depth", flops.module_depth);
  resolution.read("flops_profiler.top_modules", flops.top_modules);
  resolution.read("flops_profiler.output_file", flops.output_file);
  return flops;
}

TimelineConfig resolve_timeline(const Resolution& resolution) {
  TimelineConfig timeline;
  resolution.read("zerorun.timeline.enabled", timeline.enabled);
  resolution.read("zerorun.timeline.path", timeline.path);
  resolution.read("zerorun.timeline.ring_mib", timeline.ring_mib);
  constexpr std::string_view steps_key = "zerorun.timeline.steps";
  const auto steps = resolution.settings.get<std::vector<double>>(steps_key);
  if (!steps) return timeline;
  const auto is_step = [](double step) { return step >= 1 && step <= 1e15 && std::floor(step) == step; };
  if (steps->size() == 2 && is_step((*steps)[0]) && is_step((*steps)[1]) && (*steps)[0] <= (*steps)[1]) {
    timeline.steps = {static_cast<int64_t>((*steps)[0]), static_cast<int64_t>((*steps)[1])};
  } else {
    resolution.report(steps_key, "the first and the last step, whole numbers from 1", to_json(*steps),
                      "write for example [10, 20], or leave the key out");
  }
  return timeline;
}

}  // namespace

MonitoringConfig resolve_monitoring(const Resolution& resolution) {
  MonitoringConfig monitoring;
  read_files(resolution, "csv_monitor", monitoring.csv);
  read_files(resolution, "tensorboard", monitoring.tensorboard);
  monitoring.wandb = resolve_wandb(resolution);
  monitoring.comet = resolve_comet(resolution);
  monitoring.comms = resolve_comms(resolution);
  monitoring.flops = resolve_flops(resolution);
  monitoring.timeline = resolve_timeline(resolution);
  resolution.read("zerorun.run_log.path", monitoring.run_log.path);
  resolution.read("zerorun.run_log.hashes", monitoring.run_log.hashes);
  resolution.read("memory_breakdown", monitoring.memory_breakdown);
  resolution.read("dump_state", monitoring.dump_state);
  return monitoring;
}

}  // namespace zerorun::config
