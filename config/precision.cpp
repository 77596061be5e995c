#include <cmath>
#include <string>
#include <utility>

#include "base/dtype.h"
#include "config/sections.h"

namespace zerorun::config {
namespace {

constexpr std::string_view fp16_key = "fp16.enabled";
constexpr std::string_view bf16_key = "bf16.enabled";
constexpr std::string_view scale_key = "fp16.loss_scale";
constexpr std::string_view power_key = "fp16.initial_scale_power";
constexpr std::string_view minimum_key = "fp16.min_loss_scale";
constexpr std::string_view accumulation_key = "data_types.grad_accum_dtype";
constexpr std::string_view parameter_key = "data_types.param_dtype";
constexpr std::string_view master_key = "data_types.master_from_fp32";
constexpr std::string_view bf16_master_key = "bf16.bf16_master_weights_and_grads";
constexpr std::string_view bf16_states_key = "bf16.bf16_optimizer_states";
constexpr std::string_view coded_key = "zerorun.optimizer_states_in_8_bits";
constexpr std::string_view stochastic_key = "zerorun.stochastic_rounding";
constexpr std::string_view seed_key = "zerorun.rounding_seed";
constexpr std::string_view communication_key = "communication_data_type";

Dtype dtype_named(const std::string& name) {
  if (name == name_of(Dtype::fp16)) return Dtype::fp16;
  return name == name_of(Dtype::bf16) ? Dtype::bf16 : Dtype::fp32;
}

std::optional<Dtype> dtype_of(const Settings& settings, std::string_view path) {
  const auto name = settings.get<std::string>(path);
  return name ? std::optional(dtype_named(*name)) : std::nullopt;
}

/// Returns nothing if the dtype is undecided: the keys are "auto" without a value, or were refused.
std::optional<Dtype> training_dtype(const Resolution& resolution) {
  const Settings& settings = resolution.settings;
  const bool fp16 = settings.get<bool>(fp16_key).value_or(false);
  const bool bf16 = settings.get<bool>(bf16_key).value_or(false);
  if (fp16 && bf16) {
    resolution.report(bf16_key, "one of fp16 and bf16", "both", "set one of the two to false");
    return std::nullopt;
  }
  if (fp16) return Dtype::fp16;
  if (bf16) return Dtype::bf16;
  for (const std::string_view key : {fp16_key, bf16_key}) {
    if (settings.undecided(key) || settings.undecided(section_of(key))) return std::nullopt;
  }
  return Dtype::fp32;
}

std::string why(const Resolution& resolution, Dtype training) {
  if (training == Dtype::fp32) return "as neither fp16 nor bf16 is on";
  return "as " + resolution.settings.written(training == Dtype::fp16 ? fp16_key : bf16_key) + " is true";
}

/// Returns the remedy that changes the dtype of training to `wanted`.
std::string switch_to(Dtype wanted) {
  if (wanted == Dtype::fp32) return "switch fp16 and bf16 off";
  return std::string("train with \"") + name_of(wanted) + "\": {\"enabled\": true}";
}

/// Reports an error if the dtype of `key` differs from the dtype of training. fp32 is also allowed for
/// accumulating gradients.
void check_dtype(const Resolution& resolution, std::string_view key, Dtype training) {
  const bool may_be_fp32 = key == accumulation_key;
  const auto asked = dtype_of(resolution.settings, key);
  if (!asked || *asked == training || (may_be_fp32 && *asked == Dtype::fp32)) return;
  const std::string fp32 = may_be_fp32 && training != Dtype::fp32 ? "fp32 or " : "";
  resolution.report(
      key, fp32 + name_of(training) + ", " + why(resolution, training),
      std::string("\"") + name_of(*asked) + "\"",
      "leave the key out" + std::string(may_be_fp32 ? " for fp32" : "") + ", or " + switch_to(*asked));
}

bool is_on(const Resolution& resolution, std::string_view key) {
  return resolution.settings.get<bool>(key).value_or(false);
}

void tell_of_master(const Resolution& resolution, const PrecisionConfig& precision) {
  if (!is_on(resolution, master_key) || precision.training != precision.master) return;
  resolution.note(master_key,
                  precision.training == Dtype::fp32
                      ? "true has no effect: training is in fp32"
                      : "true has no effect: with bf16_master_weights_and_grads there are no master weights");
}

/// Reads which states are bfloat16, and how updates round to it.
void read_states(const Resolution& resolution, PrecisionConfig& precision) {
  for (const auto& [key, dtype] :
       {std::pair(bf16_master_key, &precision.master), std::pair(bf16_states_key, &precision.moments)}) {
    if (!is_on(resolution, key)) continue;
    if (precision.training == Dtype::bf16) {
      *dtype = Dtype::bf16;
    } else {
      resolution.note(key, "true has no effect: bf16.enabled is not true");
    }
  }
  precision.moments_in_8_bits = is_on(resolution, coded_key);
  if (precision.moments_in_8_bits && precision.moments != Dtype::fp32) {
    resolution.report(coded_key, "false, as bf16.bf16_optimizer_states is true", "true",
                      "keep one of the two");
  }
  if (!is_on(resolution, stochastic_key)) {
    if (resolution.settings.get<int64_t>(seed_key).value_or(0) != 0)
      resolution.note(seed_key, "has no effect: zerorun.stochastic_rounding is not true");
  } else if (precision.has_narrow_states()) {
    int64_t seed = 0;
    resolution.read(seed_key, seed);
    precision.rounding_seed = seed;
  } else {
    resolution.note(stochastic_key, "true has no effect: weights and optimizer states are updated in fp32");
  }
}

/// Notes that the keys of dynamic loss scaling have no effect, because the scale is fixed.
void warn_of_fixed_scale(const Resolution& resolution, double scale) {
  for (const std::string_view name : {"initial_scale_power", "loss_scale_window", "hysteresis",
                                      "consecutive_hysteresis", "min_loss_scale"}) {
    const std::string path = "fp16." + std::string(name);
    const Setting* setting = resolution.settings.find(path);
    const bool reported =
        setting && setting->source == Source::file && setting->value != fallback_of(*setting->fact);
    if (!reported) continue;
    resolution.note(path,
                    to_json(setting->value) + " has no effect: loss_scale is fixed at " + to_json(scale));
  }
}

/// Refuses zeros, which break dynamic loss scaling in DeepSpeed: a window of 0 divides by zero, a minimum of
/// 0 lets the scale reach 0, and with a hysteresis of 0 the scale is never lowered.
void check_counts(const Resolution& resolution) {
  for (const std::string_view key :
       {std::string_view("fp16.loss_scale_window"), std::string_view("fp16.hysteresis"), minimum_key}) {
    if (resolution.settings.get<int64_t>(key) != 0) continue;
    resolution.report(key, "an integer of at least 1 with dynamic loss scaling", "0",
                      "write a larger number, or a loss_scale above 0");
  }
}

void check_minimum(const Resolution& resolution, double initial) {
  const int64_t minimum = resolution.settings.get<int64_t>(minimum_key).value_or(0);
  if (static_cast<double>(minimum) <= initial) return;
  resolution.report(
      minimum_key, "at most " + to_json(initial) + ", the first scale: 2 to the power of initial_scale_power",
      to_json(minimum), "lower it, or raise initial_scale_power");
}

LossScaleConfig resolve_scale(const Resolution& resolution) {
  const Settings& settings = resolution.settings;
  LossScaleConfig scale;
  int64_t power = 16;
  resolution.read(power_key, power);
  scale.initial = std::ldexp(1.0, static_cast<int>(power));
  resolution.read("fp16.loss_scale_window", scale.window);
  resolution.read("fp16.hysteresis", scale.hysteresis);
  resolution.read("fp16.consecutive_hysteresis", scale.consecutive_hysteresis);
  if (const auto minimum = settings.get<int64_t>(minimum_key)) scale.minimum = static_cast<double>(*minimum);
  if (settings.undecided(scale_key)) return scale;
  if (const double fixed = settings.get<double>(scale_key).value_or(0); fixed > 0) {
    scale.fixed = fixed;
    // With a scale below 1e-6 nearly all fp16 gradients would underflow.
    if (fixed < 1e-6) {
      resolution.report(scale_key, "0 or a loss scale of at least 1e-06", to_json(fixed),
                        "write a loss scale such as 128, or 0 for dynamic loss scaling");
    }
    warn_of_fixed_scale(resolution, fixed);
    return scale;
  }
  check_counts(resolution);
  if (!settings.undecided(power_key)) check_minimum(resolution, scale.initial);
  return scale;
}

/// Autocast casts parameters that are fp32.
void check_autocast(const Resolution& resolution, Dtype training) {
  if (training == Dtype::fp32) return;
  resolution.report("torch_autocast.enabled", "false, " + why(resolution, training), "true",
                    std::string("keep one of the two: with ") + name_of(training) +
                        " the parameters themselves are converted");
}

}  // namespace

PrecisionConfig resolve_precision(const Resolution& resolution) {
  Settings& settings = resolution.settings;
  PrecisionConfig precision;
  if (const auto training = training_dtype(resolution)) {
    precision.training = *training;
    check_dtype(resolution, parameter_key, *training);
    check_dtype(resolution, accumulation_key, *training);
    settings.derive(communication_key, std::string(name_of(*training)));
    read_states(resolution, precision);
    settings.derive(accumulation_key, std::string(name_of(precision.master)));
    tell_of_master(resolution, precision);
  }
  precision.communication = dtype_of(settings, communication_key).value_or(precision.training);
  precision.accumulation = dtype_of(settings, accumulation_key).value_or(Dtype::fp32);
  precision.buffers = dtype_of(settings, "data_types.buffer_dtype");
  precision.fp32_buffers = settings.get<std::vector<std::string>>("data_types.keep_in_fp32_modules");
  resolution.read(master_key, precision.master_from_fp32);
  precision.autocast = settings.get<bool>("torch_autocast.enabled").value_or(false);
  if (precision.autocast) check_autocast(resolution, precision.training);
  if (precision.training == Dtype::fp16) {
    resolution.read("fp16.auto_cast", precision.auto_cast);
    precision.loss_scale = resolve_scale(resolution);
  }
  return precision;
}

}  // namespace zerorun::config
