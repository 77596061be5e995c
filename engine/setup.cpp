#include "engine/setup.h"

#include <algorithm>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "engine/schedules.h"
#include "optim/client_optimizer.h"
#include "optim/whole_parameter_optimizers.h"
#include "zero/stage.h"

namespace zerorun {
namespace {

bool has_eps(OptimizerType type) {
  return type != OptimizerType::sgd && type != OptimizerType::lion;
}

[[noreturn]] void refuse_hyperparameter(const std::string& name, OptimizerType type) {
  throw UserError("a parameter group has " + name + ", and the config's optimizer is " + name_of(type) +
                  ", which has none: leave them out");
}

}  // namespace

void check_one_optimizer(const Config& config, const InitializeOptions& options) {
  if (options.optimizer) check_client_optimizer(*options.optimizer);
  if (options.optimizer && config.optimizer) {
    throw UserError(
        "both the config and the program name an optimizer: remove the config's \"optimizer\" block or "
        "do not pass one to initialize()");
  }
  if (!options.optimizer && !config.optimizer) {
    throw UserError("no optimizer: add an \"optimizer\" block to the config or pass one to initialize()");
  }
  if (options.optimizer && !options.parameter_groups.empty()) {
    throw UserError(
        "parameter groups are given twice: the optimizer passed to initialize() has its own; leave "
        "InitializeOptions::parameter_groups empty");
  }
}

void check_world_size(const Config& config, int world_size) {
  const BatchConfig& batch = config.batch;
  const int64_t product = batch.micro_batch_size_per_gpu * batch.gradient_accumulation_steps * world_size;
  if (batch.train_batch_size == product) return;
  throw UserError("the config was read for another number of ranks: train_batch_size " +
                  std::to_string(batch.train_batch_size) + " is not micro-batch " +
                  std::to_string(batch.micro_batch_size_per_gpu) + " x accumulation " +
                  std::to_string(batch.gradient_accumulation_steps) + " x " + std::to_string(world_size) +
                  " ranks; give load_config() the world size of the communicator");
}

Layout make_model_layout(const ModelParameters& model, const Config& config, const InitializeOptions& options,
                         const Communicator& communicator) {
  std::vector<LayoutParameter> parameters;
  const StagePolicy policy = policy_of(config.zero.stage);
  int64_t total = 0;
  int64_t persistent = 0;
  for (const auto& [name, tensor, group] : model.trained) {
    const bool persists = tensor.numel() <= config.zero.param_persistence_threshold &&
                          persistent + tensor.numel() <= config.zero.model_persistence_threshold;
    if (persists) persistent += tensor.numel();
    parameters.push_back(
        {.numel = tensor.numel(), .group = group, .partitioned = policy.partition_parameters && !persists});
    total += tensor.numel();
  }
  for (const auto& [name, tensor, group] : model.frozen) {
    parameters.push_back({.numel = tensor.numel(), .group = group, .partitioned = true});
    total += tensor.numel();
  }
  const PrecisionConfig& precision = config.precision;
  const int64_t element_size = size_of(precision.training);
  const int64_t smallest = std::min(element_size, size_of(precision.communication));
  const int64_t alignment = communicator.device().alignment() / smallest;
  const int64_t chosen = choose_bucket_numel(total, element_size, config.zero.reduce_bucket_size,
                                             config.zero.allgather_bucket_size);
  return make_layout(parameters, communicator.world_size(), alignment, options.bucket_numel.value_or(chosen));
}

std::vector<OptimizerConfig> group_configs(const OptimizerConfig& base, const InitializeOptions& options) {
  std::vector<OptimizerConfig> groups;
  for (const ParameterGroup& group : options.parameter_groups) {
    OptimizerConfig own = base;
    own.lr = group.lr.value_or(base.lr);
    own.adam_lr = group.lr.value_or(base.adam_lr);
    own.weight_decay = group.weight_decay.value_or(base.weight_decay);
    const bool takes_betas = has_betas(base.type) || base.type == OptimizerType::muon;
    if (group.betas && !takes_betas) refuse_hyperparameter("betas", base.type);
    if (group.eps && !has_eps(base.type)) refuse_hyperparameter("eps", base.type);
    if (group.betas) std::tie(own.beta1, own.beta2) = *group.betas;
    own.eps = group.eps.value_or(base.eps);
    groups.push_back(own);
  }
  if (groups.empty()) groups.push_back(base);
  return base.type == OptimizerType::muon ? split_for_muon(groups) : groups;
}

std::string describe_settings(const Config& config, const InitializeOptions& options) {
  std::ostringstream text;
  text << std::hexfloat << config.zero.stage << ' ' << config.zero.reduce_bucket_size << ' '
       << config.zero.allgather_bucket_size << ' ' << config.zero.overlap_comm << ' '
       << config.zero.max_live_parameters << ' ' << config.zero.max_reuse_distance << ' '
       << config.zero.prefetch_bucket_size << ' ' << config.zero.param_persistence_threshold << ' '
       << config.zero.model_persistence_threshold << ' ' << options.bucket_numel.value_or(0) << ' '
       << config.batch.train_batch_size << ' ' << config.batch.gradient_accumulation_steps << ' '
       << config.gradient_clipping << ' ' << config.prescale_gradients << ' '
       << config.gradient_predivide_factor << ' ' << config.average_gradients;
  const PrecisionConfig& precision = config.precision;
  const LossScaleConfig& scale = precision.loss_scale;
  text << ' ' << name_of(precision.training) << ' ' << name_of(precision.communication) << ' '
       << name_of(precision.accumulation) << ' '
       << (precision.buffers ? name_of(*precision.buffers) : "as they are") << ' '
       << precision.master_from_fp32 << ' ' << precision.auto_cast << ' ' << scale.fixed.value_or(0) << ' '
       << scale.initial << ' ' << scale.window << ' ' << scale.hysteresis << ' '
       << scale.consecutive_hysteresis << ' ' << scale.minimum;
  if (config.optimizer) {
    for (const OptimizerConfig& group : group_configs(*config.optimizer, options)) {
      text << " group " << static_cast<int>(group.type) << ' ' << group.lr << ' ' << group.beta1 << ' '
           << group.beta2 << ' ' << group.eps << ' ' << group.weight_decay << ' ' << group.bias_correction
           << ' ' << group.amsgrad << ' ' << group.momentum << ' ' << group.dampening << ' ' << group.nesterov
           << ' ' << group.alpha << ' ' << group.centered << ' ' << group.lr_decay << ' '
           << group.initial_accumulator_value << ' ' << group.max_coeff << ' ' << group.min_coeff << ' '
           << group.eps_inside_sqrt << ' ' << static_cast<int>(group.newton_schulz);
    }
  }
  if (options.optimizer) {
    text << " client";
    for (const auto& group : options.optimizer->param_groups()) text << ' ' << group.options().get_lr();
  }
  text << describe_schedules(config, options);
  return text.str();
}

}  // namespace zerorun
