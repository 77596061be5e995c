#include "config/sections.h"

namespace zerorun::config {
namespace {

std::string param(std::string_view name) {
  return "scheduler.params." + std::string(name);
}

std::optional<PerGroup> per_group(const Settings& settings, std::string_view name) {
  if (const auto one = settings.get<double>(param(name))) return *one;
  if (auto list = settings.get<std::vector<double>>(param(name))) return *std::move(list);
  return std::nullopt;
}

void read(const Resolution& resolution, std::string_view name, PerGroup& target) {
  if (auto value = per_group(resolution.settings, name)) target = *std::move(value);
}

Warmup read_warmup(const Resolution& resolution) {
  Warmup warmup;
  resolution.read(param("warmup_num_steps"), warmup.num_steps);
  if (warmup.num_steps == 0) {
    resolution.warn(param("warmup_num_steps"),
                    "0 has the same effect as 2, the shortest warm-up; write 1 or 2");
    warmup.num_steps = 1;
  }
  if (resolution.settings.get<std::string>(param("warmup_type")) == "linear") {
    warmup.type = WarmupType::linear;
  }
  return warmup;
}

/// Reports an error if a required parameter is missing. `example` is a value to suggest.
void require(const Resolution& resolution, const std::string& type, const std::string& name,
             const std::string& example) {
  const Settings& settings = resolution.settings;
  if (settings.given(param(name)) || settings.undecided(param(name))) return;
  resolution.report(param(name), name + " for " + type, "nothing",
                    "write \"params\": {\"" + name + "\": " + example + "}");
}

/// Warns that the schedule overrides the optimizer's lr. `name` is the schedule's own learning-rate
/// parameter.
void warn_of_ignored_lr(const Resolution& resolution, const std::string& type, std::string_view name) {
  constexpr std::string_view key = "optimizer.params.lr";
  const Settings& settings = resolution.settings;
  const auto lr = settings.get<double>(key);
  const auto own = per_group(settings, name);
  if (!settings.given(key) || !lr || !own || *own == PerGroup(*lr)) return;
  const std::string value = std::visit([](const auto& held) { return to_json(held); }, *own);
  resolution.warn(key, to_json(*lr) + " has no effect: the learning rate of " + type + " is set by " +
                           std::string(name) + ", which is " + value);
}

int64_t read_total(const Resolution& resolution, const std::string& type, const Warmup& warmup) {
  int64_t total = 0;
  resolution.read(param("total_num_steps"), total);
  require(resolution, type, "total_num_steps", "1000");
  if (total > 0 && warmup.num_steps > total) {
    resolution.warn(param("total_num_steps"), "warmup_num_steps " + std::to_string(warmup.num_steps) +
                                                  " is above total_num_steps " + std::to_string(total) +
                                                  ": the warm-up does not end within the schedule");
  }
  return total;
}

WarmupLr read_warmup_lr(const Resolution& resolution, const std::string& type) {
  Settings& settings = resolution.settings;
  WarmupLr schedule;
  schedule.warmup = read_warmup(resolution);
  read(resolution, "warmup_min_lr", schedule.min_lr);
  // This comes before derive(), which sets a value for display only: without warmup_max_lr the schedule uses
  // each parameter group's own learning rate.
  schedule.max_lr = per_group(settings, "warmup_max_lr");
  warn_of_ignored_lr(resolution, type, "warmup_max_lr");
  const auto lr = settings.get<double>("optimizer.params.lr");
  if (lr && settings.find("optimizer")) settings.derive(param("warmup_max_lr"), *lr);
  return schedule;
}

WarmupDecayLr read_warmup_decay(const Resolution& resolution, const std::string& type) {
  WarmupDecayLr schedule;
  resolution.settings.derive(param("warmup_max_lr"), std::get<double>(schedule.max_lr));
  schedule.warmup = read_warmup(resolution);
  read(resolution, "warmup_min_lr", schedule.min_lr);
  read(resolution, "warmup_max_lr", schedule.max_lr);
  warn_of_ignored_lr(resolution, type, "warmup_max_lr");
  schedule.total_num_steps = read_total(resolution, type, schedule.warmup);
  return schedule;
}

WarmupCosineLr read_warmup_cosine(const Resolution& resolution, const std::string& type) {
  WarmupCosineLr schedule;
  schedule.warmup = read_warmup(resolution);
  resolution.read(param("warmup_min_ratio"), schedule.min_ratio);
  resolution.read(param("cos_min_ratio"), schedule.cos_min_ratio);
  schedule.total_num_steps = read_total(resolution, type, schedule.warmup);
  return schedule;
}

/// Notes that cycle_momentum has no effect on an optimizer without betas. DeepSpeed logs this when training
/// starts, and continues.
void note_momentum(const Resolution& resolution) {
  const Settings& settings = resolution.settings;
  const auto optimizer = settings.get<std::string>("optimizer.type");
  const bool cycles = settings.get<bool>(param("cycle_momentum")).value_or(true);
  if (!cycles || !optimizer || has_word(find_key("optimizer.params.betas")->types, *optimizer)) return;
  resolution.note(param("cycle_momentum"), *optimizer + " has no betas: the momentum stays as it is");
}

OneCycle read_one_cycle(const Resolution& resolution, const std::string& type) {
  OneCycle schedule;
  require(resolution, type, "cycle_min_lr", "0.0001");
  require(resolution, type, "cycle_max_lr", "0.001");
  read(resolution, "cycle_min_lr", schedule.min_lr);
  read(resolution, "cycle_max_lr", schedule.max_lr);
  warn_of_ignored_lr(resolution, type, "cycle_max_lr");
  resolution.read(param("cycle_first_step_size"), schedule.first_step_size);
  schedule.second_step_size = resolution.settings.get<int64_t>(param("cycle_second_step_size"));
  resolution.read(param("cycle_first_stair_count"), schedule.first_stair_count);
  schedule.second_stair_count = resolution.settings.get<int64_t>(param("cycle_second_stair_count"));
  resolution.read(param("decay_step_size"), schedule.decay_step_size);
  resolution.read(param("decay_lr_rate"), schedule.decay_lr_rate);
  resolution.read(param("cycle_momentum"), schedule.cycle_momentum);
  read(resolution, "cycle_min_mom", schedule.min_mom);
  read(resolution, "cycle_max_mom", schedule.max_mom);
  resolution.read(param("decay_mom_rate"), schedule.decay_mom_rate);
  note_momentum(resolution);
  return schedule;
}

LrRangeTest read_lr_range_test(const Resolution& resolution, const std::string& type) {
  LrRangeTest schedule;
  read(resolution, "lr_range_test_min_lr", schedule.min_lr);
  warn_of_ignored_lr(resolution, type, "lr_range_test_min_lr");
  resolution.read(param("lr_range_test_step_size"), schedule.step_size);
  resolution.read(param("lr_range_test_step_rate"), schedule.step_rate);
  resolution.read(param("lr_range_test_staircase"), schedule.staircase);
  return schedule;
}

}  // namespace

std::optional<SchedulerConfig> resolve_scheduler(const Resolution& resolution) {
  if (!resolution.settings.find("scheduler")) return std::nullopt;
  const auto type = resolution.settings.get<std::string>("scheduler.type");
  if (type == "WarmupLR") return read_warmup_lr(resolution, *type);
  if (type == "WarmupDecayLR") return read_warmup_decay(resolution, *type);
  if (type == "WarmupCosineLR") return read_warmup_cosine(resolution, *type);
  if (type == "OneCycle") return read_one_cycle(resolution, *type);
  if (type == "LRRangeTest") return read_lr_range_test(resolution, *type);
  return std::nullopt;  // the type is missing or not supported, which has been reported
}

}  // namespace zerorun::config
