#include "engine/setup.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/describe.h"
#include "base/error.h"
#include "base/log.h"
#include "device/moment_codes.h"
#include "engine/host_update.h"
#include "engine/optimizer_groups.h"
#include "engine/pipeline_division.h"
#include "optim/client_optimizer.h"
#include "optim/torch_optimizers.h"
#include "zero/deferred_init.h"
#include "zero/stage.h"

namespace zerorun {

StagePolicy policy_of(const Config& config) {
  StagePolicy policy = policy_of(config.zero.stage);
  if (config.pipeline.reduces_by_window) policy.reduce_every_backward = false;
  return policy;
}

void check_not_on_meta(const Model& model, c10::Device of_ranks) {
  if (of_ranks.is_meta()) return;
  for (const auto& [kind, tensors] :
       {std::pair("parameter ", &model.parameters), std::pair("buffer ", &model.buffers),
        std::pair("buffer ", &model.unsaved_buffers)}) {
    for (const auto& [name, tensor] : *tensors) {
      if (!tensor.is_meta() || is_deferred(tensor)) continue;
      throw UserError(kind + name +
                      " is on the device \"meta\" and has no values: build the model on the CPU, or under a "
                      "DeferredInit, which takes no memory either");
    }
  }
}

void check_one_optimizer(const Config& config, const InitializeOptions& options) {
  if (options.computes_only) return;
  if (options.optimizer) check_client_optimizer(*options.optimizer);
  const PrecisionConfig& precision = config.precision;
  if (options.optimizer && (precision.has_narrow_states() || precision.moments_in_8_bits)) {
    throw UserError(
        std::string(precision.moments_in_8_bits
                        ? "zerorun.optimizer_states_in_8_bits"
                        : "bf16.bf16_master_weights_and_grads or bf16.bf16_optimizer_states") +
        " is true, and the optimizer is the program's own, whose step needs fp32 states: name an optimizer "
        "in the config instead");
  }
  if (config.optimizer) {
    if (const auto reason = reason_against_narrow_states(*config.optimizer, precision)) {
      throw UserError(
          std::string(precision.moments_in_8_bits ? "optimizer states in 8 bits"
                                                  : "bf16 weights or optimizer states") +
          " with the optimizer " + name_of(*config.optimizer) + ", " + *reason +
          (precision.moments_in_8_bits
               ? ": remove zerorun.optimizer_states_in_8_bits, or use Adam, AdamW (without amsgrad) or Lion"
               : ": remove bf16.bf16_master_weights_and_grads and bf16.bf16_optimizer_states, or use another "
                 "optimizer, such as AdamW"));
    }
  }
  if (options.optimizer && config.optimizer) {
    throw UserError(
        "both the config and the program name an optimizer: remove the config's \"optimizer\" block or do "
        "not pass one to initialize()");
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

Mesh make_mesh(const Config& config, const InitializeOptions& options, std::shared_ptr<Communicator> world) {
  if (options.mesh && config.mesh) {
    const MeshSizes read = config.mesh->resolved(world->world_size());
    const MeshSizes given = with_replicas_of(read, *options.mesh).resolved(world->world_size());
    if (given != read) {
      throw UserError("InitializeOptions::mesh is " + describe(given) +
                      ", and the config's zerorun.mesh is " + describe(read) +
                      ": give the same sizes, or leave one of them out");
    }
  }
  if (config.sum_group > 0) world->set_sum_group(config.sum_group);
  std::optional<MeshSizes> sizes = options.mesh ? options.mesh : config.mesh;
  if (sizes && config.mesh) sizes = with_replicas_of(*config.mesh, *sizes);
  if (options.pipeline && !sizes) sizes = MeshSizes();  // a pipeline of one stage
  return sizes ? Mesh(std::move(world), *sizes) : Mesh(std::move(world));
}

void check_replicas(const Config& config, const Mesh& mesh) {
  if (!mesh.has_replicas()) return;
  const std::string replicas =
      "the mesh has " + std::to_string(mesh.sizes().replicate) + " replicas (zerorun.mesh.replicate)";
  if (policy_of(config).replicate_update)
    throw UserError(replicas +
                    ", and at stage 0 every rank has all states: set zero_optimization.stage to 1, 2 "
                    "or 3, or leave the key out");
  if (updates_on_host(config, mesh.data().device())) {
    throw UserError(
        replicas +
        ", whose gradients are summed on the GPU, and offload_optimizer updates on the host: use one "
        "of the two");
  }
  if (config.node_local_checkpoints) {
    throw UserError(
        replicas +
        ", of which only the first saves, and checkpoint.use_node_local_storage keeps each host's "
        "part on its own disk: save to a folder that all hosts share");
  }
}

namespace {

void make_near_groups(const Config& config, Mesh& mesh) {
  constexpr char kKey[] = "zero_optimization.zero_hpz_partition_size";
  const Communicator& ranks = mesh.shards();
  const int near = config.zero.hpz_partition_size;
  if (near == 1 || ranks.shares_memory()) return;
  const std::string count = std::to_string(ranks.world_size());
  if (ranks.world_size() <= near) {
    if (mesh.world().rank() == 0)
      log_info(std::string(kKey) + " " + std::to_string(near) +
               " has no effect: parameters are partitioned among " + count + " ranks");
    return;
  }
  if (ranks.world_size() % near != 0) {
    throw UserError(
        std::string(kKey) + " " + std::to_string(near) + " does not divide the " + count +
        " data ranks among which parameters are partitioned: choose a divisor, such as the ranks of "
        "a host");
  }
  try {
    mesh.make_near_groups(near);
  } catch (const UserError& error) {
    throw UserError(std::string(kKey) + " " + std::to_string(near) + ": " + error.what());
  }
}

void make_summing_groups(const Config& config, Mesh& mesh) {
  const std::vector<int> sizes = mesh.shards().sum_groups();
  const bool are_equal = std::ranges::adjacent_find(sizes, std::ranges::not_equal_to()) == sizes.end();
  if (quantizes_gradients(config, mesh) && !sizes.empty() && are_equal)
    mesh.make_summing_groups(sizes.front());
}

}  // namespace

bool quantizes_gradients(const Config& config, const Mesh& mesh) {
  const Communicator& ranks = mesh.shards();
  const int last = ranks.world_size() - 1;
  const bool is_one_group = config.sum_group > 0 && ranks.rank_in_job(0) / config.sum_group ==
                                                        ranks.rank_in_job(last) / config.sum_group;
  return config.zero.quantized_gradients && last > 0 && !ranks.shares_memory() && !is_one_group;
}

void make_neighbour_groups(const Config& config, Mesh& mesh) {
  make_near_groups(config, mesh);
  make_summing_groups(config, mesh);
}

void check_data_size(const Config& config, const Mesh& mesh) {
  const int ranks = mesh.data().world_size();
  const BatchConfig& batch = config.batch;
  const int64_t product = batch.micro_batch_size_per_gpu * batch.gradient_accumulation_steps * ranks;
  if (batch.train_batch_size == product) return;
  throw UserError("the config was read for another world size: train_batch_size " +
                  std::to_string(batch.train_batch_size) + " is not micro-batch " +
                  std::to_string(batch.micro_batch_size_per_gpu) + " x accumulation " +
                  std::to_string(batch.gradient_accumulation_steps) + " x " + std::to_string(ranks) +
                  (mesh.has_groups() ? " data ranks of a mesh of " + describe(mesh.sizes()) +
                                           "; give load_config() the number of ranks and the mesh"
                                     : " ranks; give load_config() the world size of the communicator"));
}

Layout make_model_layout(const ModelParameters& model, const Config& config, const InitializeOptions& options,
                         const Mesh& mesh) {
  const Communicator& communicator = mesh.shards();
  const MeshCoordinates& own = mesh.coordinates();
  // What tensor ranks have whole, the first one counts; what several pipeline stages or replicas have, the
  // first of them.
  auto is_counted = [&](const NamedParameter& parameter) {
    const bool is_first =
        parameter.tied ? parameter.tied->rank() == 0 : model.is_divided || own.pipeline == 0;
    return is_first && mesh.replica() == 0 && (own.tensor == 0 || parameter.share == Share::split);
  };
  // All tensor ranks have the layout of the largest parts, and decide by the size of the whole parameter.
  auto numel_of = [](const NamedParameter& parameter) {
    const int64_t numel = parameter.tensor.numel();
    return parameter.split ? numel / parameter.split->whole * parameter.split->largest_part() : numel;
  };
  std::vector<LayoutParameter> parameters;
  const StagePolicy policy = policy_of(config);
  int64_t total = 0;
  int64_t persistent = 0;
  auto add = [&](const NamedParameter& parameter, bool partitioned) {
    parameters.push_back({.numel = numel_of(parameter),
                          .group = parameter.group,
                          .partitioned = partitioned,
                          .counted = is_counted(parameter),
                          .share = parameter.share,
                          .alone = parameter.tied != nullptr});
    total += numel_of(parameter);
  };
  for (const NamedParameter& parameter : model.trained) {
    const int64_t numel = parameter.tensor.numel();
    const bool persists = numel <= config.zero.param_persistence_threshold &&
                          persistent + numel <= config.zero.model_persistence_threshold;
    if (persists) persistent += numel;
    add(parameter, policy.partition_parameters && !persists);
  }
  for (const NamedParameter& parameter : model.frozen) add(parameter, policy.partition_parameters);
  const PrecisionConfig& precision = config.precision;
  const int64_t element_size = size_of(precision.training);
  const int64_t smallest = std::min(element_size, size_of(precision.communication));
  // Blocks of moments in 8 bits begin at parameters' first elements, and no slice cuts one.
  const int64_t alignment = std::max<int64_t>(precision.moments_in_8_bits ? kCodedBlock : 1,
                                              communicator.device().alignment() / smallest);
  const ZeroConfig& zero = config.zero;
  BucketSizeLimits limits{.reduce_bucket_size = zero.reduce_bucket_size,
                          .allgather_bucket_size = zero.allgather_bucket_size,
                          .max_bytes = communicator.device().bucket_bytes(communicator.world_size())};
  if (policy.partition_parameters) limits.prefetch = zero.prefetch_bucket_size;
  const int64_t chosen = choose_bucket_numel(total, element_size, limits);
  return make_layout(parameters, communicator.world_size(), alignment, options.bucket_numel.value_or(chosen));
}

std::string describe_settings(const Config& config, const InitializeOptions& options) {
  // All settings that affect results. Settings that only affect what a rank logs may differ.
  const auto& [batch, optimizer, scheduler, zero, precision, clipping, steps_per_print, breakdown, monitoring,
               prescale, managed, predivide, average, node_local, partner, pipeline, recompute, mesh,
               sum_group, warnings, notes, python, resolved] = config;
  ZeroConfig same_everywhere = zero;  // without paths, buffers and aio: disks may differ
  same_everywhere.offload_optimizer = {.device = zero.offload_optimizer.device,
                                       .ratio = zero.offload_optimizer.ratio};
  same_everywhere.offload_param = {.device = zero.offload_param.device,
                                   .max_in_cpu = zero.offload_param.max_in_cpu};
  same_everywhere.aio = {};
  RecomputeConfig recompute_everywhere = recompute;
  if (!recompute.nvme_path.empty()) recompute_everywhere.nvme_path = "a folder";
  const bool writes_files = monitoring.writes_files();    // rank 0 tells all whether it can
  const bool has_timeline = monitoring.timeline.enabled;  // ranks compare their clocks
  const bool logs = monitoring.run_log.is_on(), hashes = monitoring.run_log.has_hashes();  // collectives
  std::ostringstream text;
  describe(text, std::tie(batch, scheduler, same_everywhere, precision, clipping, prescale, managed,
                          predivide, average, node_local, partner, pipeline, recompute_everywhere, python,
                          options.bucket_numel, writes_files));
  describe(text, std::tie(has_timeline, logs, hashes, sum_group));
  text << describe_pipeline(options);
  if (options.tensor_plan) {
    text << " tensor plan";
    for (const TensorPlanEntry& entry : *options.tensor_plan) {
      text << ' ' << entry.pattern << ' ' << name_of(entry.style);
      describe(text, entry.cut);
    }
  }
  if (optimizer) describe(text, group_configs(*optimizer, options));
  for (const auto& [name, heads] : options.attention_heads) text << " heads of " << name << ' ' << heads;
  if (options.optimizer) {
    text << " client " << describe_torch_optimizer(*options.optimizer);
  }
  if (options.schedule) text << " schedule of the program";
  if (options.lr_scheduler) text << " lr_scheduler of the program";
  return text.str();
}

}  // namespace zerorun
