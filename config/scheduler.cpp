#include "config/sections.h"

namespace zerorun {
namespace {

constexpr double warmup_decay_max_lr = 0.001;  // WarmupDecayLR's default; WarmupLR's is the optimizer's lr

/// 0 is in files of old versions, which took it for 2; DeepSpeed refuses it now.
void read_warmup_steps(const Resolution& resolution, int64_t& steps) {
  constexpr std::string_view key = "scheduler.params.warmup_num_steps";
  resolution.read(key, steps);
  if (steps > 0) return;
  if (resolution.purpose == Purpose::run) {
    resolution.report(key, "an integer of at least 1", "0", "write 1, which acts as 2, for no warm-up");
  } else {
    resolution.note(key, "0 is refused by a run: write 1, which acts as 2, for no warm-up");
  }
}

}  // namespace

std::optional<SchedulerConfig> resolve_scheduler(const Resolution& resolution) {
  Settings& settings = resolution.settings;
  if (!settings.find("scheduler")) return std::nullopt;
  SchedulerConfig scheduler;
  const auto type = settings.get<std::string>("scheduler.type");
  if (type == "WarmupDecayLR") {
    scheduler.type = SchedulerType::warmup_decay_lr;
    settings.derive("scheduler.params.warmup_max_lr", warmup_decay_max_lr);
  } else if (const auto lr = settings.get<double>("optimizer.params.lr"); type == "WarmupLR" && lr) {
    if (settings.find("optimizer")) settings.derive("scheduler.params.warmup_max_lr", *lr);
  }
  resolution.read("scheduler.params.warmup_min_lr", scheduler.warmup_min_lr);
  scheduler.warmup_max_lr = settings.get<double>("scheduler.params.warmup_max_lr");
  read_warmup_steps(resolution, scheduler.warmup_num_steps);
  if (settings.get<std::string>("scheduler.params.warmup_type") == "linear") {
    scheduler.warmup_type = WarmupType::linear;
  }
  constexpr std::string_view total = "scheduler.params.total_num_steps";
  resolution.read(total, scheduler.total_num_steps);
  const bool needs_total = type == "WarmupDecayLR" || type == "WarmupCosineLR";
  if (needs_total && !settings.given(total) && !settings.undecided(total)) {
    resolution.report(total, "total_num_steps for " + *type, "nothing",
                      "write \"params\": {\"total_num_steps\": 1000}");
  }
  return scheduler;
}

}  // namespace zerorun
