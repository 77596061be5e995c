#include "engine/engine_state.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <string>
#include <typeinfo>
#include <utility>

#include "activations/marked_modules.h"
#include "base/error.h"
#include "base/log.h"
#include "base/program.h"
#include "comm/agreement.h"
#include "engine/memory_check.h"
#include "engine/memory_remedies.h"
#include "engine/model_broadcast.h"
#include "engine/optimizer_groups.h"
#include "engine/saving/checkpoint_contents.h"
#include "engine/setup.h"
#include "engine/state_placement.h"
#include "engine/step_hashes.h"
#include "engine/tensor_shares.h"
#include "optim/client_optimizer.h"
#include "optim/whole_parameter_optimizers.h"

namespace zerorun {
namespace {

// Unless the config says otherwise, fp16 gradients are divided by a power of two before the sum over ranks,
// so that the sum overflows only if a gradient does. The division by a power of two is exact except for the
// smallest values.
Averaging averaging_of(const Config& config, int world_size) {
  const double whole = config.average_gradients ? world_size : 1;
  double divided_before = config.gradient_predivide_factor;
  if (config.prescale_gradients) {
    divided_before = whole;
  } else if (divided_before == 1 && config.precision.communication == Dtype::fp16) {
    divided_before = std::bit_ceil(static_cast<unsigned>(world_size));
  }
  return {.before = 1 / divided_before, .after = whole / divided_before};
}

// Whether an operator may first have to gather its parameters, or to wait for a gather.
bool come_and_go(StagePolicy policy, int world_size) {
  return policy.partition_parameters || (!policy.replicate_update && world_size > 1);
}

std::vector<NamedParameter> bucketed(const ModelParameters& model) {
  std::vector<NamedParameter> parameters = model.trained;
  parameters.insert(parameters.end(), model.frozen.begin(), model.frozen.end());
  return parameters;
}

std::string name_of_optimizer(const Config& config, const InitializeOptions& options) {
  if (!options.optimizer) return name_of(*config.optimizer);
  if (const auto* foreign = dynamic_cast<const ForeignOptimizer*>(options.optimizer)) return foreign->name();
  const std::string type = c10::demangle(typeid(*options.optimizer).name());
  return type.substr(type.rfind(':') + 1);
}

std::vector<int64_t> numels_of(const ModelParameters& model, const Mesh& mesh) {
  std::vector<int64_t> numels;
  for (const NamedParameter& parameter : bucketed(model))
    numels.push_back(numel_of_part(parameter, mesh.coordinates().tensor));
  return numels;
}

BucketOptions bucket_options(const Config& config, StagePolicy policy, const Mesh& mesh,
                             const ModelParameters& model) {
  const Communicator& communicator = mesh.shards();
  // Operators on marked buckets are intercepted. This also reveals writes to 16-bit parameters and, on a GPU,
  // the streams that use parameters. On several hosts each host shares only whole buckets: one that is
  // partitioned lies in slices on all ranks.
  return {.marked = has_splits(model) || come_and_go(policy, communicator.world_size()) ||
                    config.precision.training != Dtype::fp32 ||
                    communicator.device().streams().asynchronous(),
          .shared = !policy.replicate_update && communicator.ranks_sharing() > 1 &&
                    (communicator.shares_memory() || !policy.partition_parameters),
          .dtype = config.precision.training,
          .master = config.precision.master,
          .master_from_fp32 = config.precision.master_from_fp32,
          .whole_master = policy.replicate_update,
          .master_on_host = updates_on_host(config, communicator.device()),
          .shards_on_host = shards_off_gpu(config, communicator.device()),
          .tensor = model.has_tensor_plan ? &mesh.along(MeshAxis::tensor) : nullptr,
          .replicas = mesh.has_replicas() ? &mesh.replicas() : nullptr};
}

ReducerOptions reducer_options(const Config& config, StagePolicy policy, double factor, const Mesh& mesh) {
  return {
      .policy = policy,
      .overlap = config.zero.overlap_comm,
      .communication = config.precision.communication,
      .accumulation = config.precision.accumulation,
      .accumulates = config.batch.gradient_accumulation_steps > 1 || !config.managed_gradient_accumulation,
      .factor = static_cast<float>(factor),
      .to_host = updates_on_host(config, mesh.data().device()),
      .quantizes = quantizes_gradients(config, mesh),
      .summing_group = mesh.summing(),
      .world = mesh.has_groups() || mesh.has_replicas() ? &mesh.world() : nullptr};
}

SliceStore make_store(const ModelParameters& parameters, const Config& config,
                      const InitializeOptions& options, const BucketOptions& kinds, const Mesh& mesh) {
  SliceStore store(make_model_layout(parameters, config, options, mesh), numels_of(parameters, mesh),
                   mesh.shards().rank(), mesh.shards().world_size());
  store.set_ranks_sharing(mesh.shards().ranks_sharing());
  keep_states_in_files(store, config, options, kinds, bucketed(parameters), mesh);
  check_memory(store, config, options, kinds, mesh.world());
  return store;
}

GatherLimits gather_limits(const Config& config) {
  return {.max_live = config.zero.max_live_parameters,
          .max_reuse_distance = config.zero.max_reuse_distance,
          .prefetch = config.zero.prefetch_bucket_size};
}

}  // namespace

EngineState::EngineState(Model given_model, Config given_config, Mesh given_mesh, ModelParameters parameters,
                         const InitializeOptions& options)
    : model(std::move(given_model)),
      config(std::move(given_config)),
      mesh(std::move(given_mesh)),
      has_tensor_plan(parameters.has_tensor_plan),
      policy(policy_of(config)),
      averaging(averaging_of(config, mesh.data().world_size())),
      memory(mesh.world().rank(), mesh.data().device().streams().asynchronous(),
             remedies_of(config, mesh.shards().world_size(), mesh.data().device().streams().asynchronous())),
      optimizer_name(name_of_optimizer(config, options)),
      store(make_store(parameters, config, options, bucket_options(config, policy, mesh, parameters), mesh)),
      buckets(bucketed(parameters), store, mesh.shards(), bucket_options(config, policy, mesh, parameters)),
      residency(buckets.marked()
                    ? std::make_unique<Residency>(buckets, store, mesh.shards(), gather_limits(config),
                                                  model.is_training,
                                                  GatherWays{mesh.near(), config.zero.quantized_weights})
                    : nullptr),
      tensor_rule(has_splits(parameters) ? std::make_shared<TensorRule>(mesh, buckets) : nullptr),
      reducer(buckets, store, mesh.shards(), reducer_options(config, policy, averaging.before, mesh)),
      host_update(updates_on_host(config, mesh.data().device())
                      ? std::make_unique<HostUpdate>(store, buckets, reducer, mesh.shards())
                      : nullptr),
      states_on_host(store, mesh.shards()),
      shard_states(store, buckets, reducer, host_update.get(), policy, config.precision, mesh.shards()),
      optimizer(make_optimizer(options)),
      schedule(make_schedule(config, options, *optimizer, mesh.world().rank() == 0), options.lr_scheduler,
               *optimizer),
      timer(config.wall_clock_breakdown, mesh.data().device().streams()),
      flops({.config = config.monitoring.flops,
             .is_counted = mesh.world().rank() == 0,
             .parameters = buckets.numel(),
             .of_model = config.monitoring.flops.enabled ? model.parameters : Model::NamedTensors(),
             .asynchronous = mesh.data().device().streams().asynchronous()}),
      outcome(store, buckets, reducer, mesh, config.precision.communication),
      progress(config),
      held(reducer, buckets, progress, options.marks_gradients, [this] { return begin_plain_backward(); }),
      checkpoints(mesh.world()) {
  monitor = std::make_unique<RunMonitor>(MonitoringConfig(), mesh, nullptr);  // until initialize() gives one
  // Comes before anything that may throw: the buckets have the parameters, so another engine has lost them.
  if (tensor_rule) buckets.set_rule(tensor_rule.get());
  owned.emplace(buckets.parameters(), [this](int parameter) { lose(parameter); });
  const Failure unfilled = broadcast_others(parameters, mesh);
  on_all_ranks(mesh.world(), "initial values", [&] {
    buckets.unfilled().raise();
    unfilled.raise();
    store.finish_generation();  // of states in files
  });
  unbucketed = std::move(parameters.unbucketed);
  unsaved = std::move(parameters.unsaved);
  if (config.precision.training == Dtype::fp16) scaler.emplace(config.precision.loss_scale);
  schedule.ask(0);
  computes_only = options.computes_only;
  if (residency) {
    residency->set_before_write([this](int bucket) { before_write(bucket); });
    residency->set_use_observer(&reducer);
  }

  // From here on the program may use other streams, so the initial values must be complete.
  Streams& streams = mesh.data().device().streams();
  Event ready;
  streams.record(ready, streams.current());
  streams.await(ready, mesh.data().timeout(), "the initial values");
}

void EngineState::lose(int parameter) {
  if (lost_parameter < 0) lost_parameter = parameter;
  reducer.stop();
  held.stop();
}

void EngineState::before_write(int bucket) {
  if (bucket >= buckets.trained_count()) {
    checkpoints.frozen().set_outdated(name_of_file(bucket, mesh.world().rank()));
    checkpoints.frozen().set_outdated(name_of_value_slot(bucket, mesh.world().rank()));
  }
  checkpoints.keep(bucket);
}

// If the last step is still open, waits for its outcome and logs a skipped step.
EngineState::~EngineState() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    finish_open_step();
  } catch (const std::exception& error) {
    log_warning(std::string("the outcome of the last step is not known: ") + error.what());
  }
}

std::unique_ptr<ShardOptimizer> EngineState::make_optimizer(const InitializeOptions& options) {
  const AllocatingFor use(MemoryUse::buckets);
  std::vector<Shard> shards = shard_states.shards();
  Device& device = host_update ? mesh.data().device().host() : mesh.data().device();
  auto borrow = [this](const Shard& shard, const char* name) {
    return shard_states.lend_moment(shard, name);
  };
  if (options.optimizer) {
    return make_client_optimizer(*options.optimizer, std::move(shards), borrow, device, shard_states);
  }
  std::vector<OptimizerConfig> groups = group_configs(*config.optimizer, options);
  if (std::holds_alternative<LambConfig>(*config.optimizer)) {
    return make_lamb_optimizer(groups, std::move(shards), borrow, store, buckets, mesh.shards(), device,
                               shard_states);
  }
  if (std::holds_alternative<MuonConfig>(*config.optimizer)) {
    return make_muon_optimizer(std::move(groups), std::move(shards), borrow, store, buckets, mesh.shards(),
                               shard_states,
                               rows_of_heads(std::get<MuonConfig>(*config.optimizer), options, buckets));
  }
  return make_fused_optimizer(std::move(groups), std::move(shards), borrow, device, shard_states);
}

}  // namespace zerorun
