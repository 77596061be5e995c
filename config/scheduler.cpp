#include "config/sections.h"

namespace zerorun {
namespace {

constexpr double warmup_decay_max_lr = 0.001;  // WarmupDecayLR's default; WarmupLR's is the optimizer's lr

}  // namespace

std::optional<SchedulerConfig> read_scheduler(SectionReader& top) {
  std::optional<SectionReader> section = top.section("scheduler");
  if (!section) return std::nullopt;
  std::optional<std::string> type;
  const bool type_fits = section->read_choice("type", type);
  if (type_fits && !type) section->report_absent("type");
  const bool decays = type == "WarmupDecayLR";

  SchedulerConfig scheduler;
  if (decays) {
    scheduler.type = SchedulerType::warmup_decay_lr;
    scheduler.warmup_max_lr = warmup_decay_max_lr;
  }
  std::optional<SectionReader> params = section->section("params", type.value_or(""));
  if (!params) {
    if (decays && !section->find("params")) {
      section->report("params", "total_num_steps for WarmupDecayLR", "nothing",
                      "write \"params\": {\"total_num_steps\": 1000}");
    }
    return scheduler;
  }
  params->read("warmup_min_lr", scheduler.warmup_min_lr);
  params->read("warmup_max_lr", scheduler.warmup_max_lr);
  params->read("warmup_num_steps", scheduler.warmup_num_steps);
  int64_t last_batch_iteration = -1;
  params->read("last_batch_iteration", last_batch_iteration);
  std::optional<std::string> warmup_type;
  params->read_choice("warmup_type", warmup_type);
  if (warmup_type == "linear") scheduler.warmup_type = WarmupType::linear;
  if (decays) {
    std::optional<int64_t> total;
    if (params->read("total_num_steps", total) && !total) params->report_absent("total_num_steps");
    scheduler.total_num_steps = total.value_or(0);
  }
  return scheduler;
}

}  // namespace zerorun
