// initialize(): checks a program's config, options and model, and makes its engine.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "activations/forward_state.h"
#include "base/activity_board.h"
#include "base/error.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/process.h"
#include "comm/agreement.h"
#include "comm/connect/rendezvous.h"
#include "engine/engine.h"
#include "engine/engine_state.h"
#include "engine/hidden_size.h"
#include "engine/model_agreement.h"
#include "engine/pipeline_division.h"
#include "engine/resolved_config.h"
#include "engine/run_log.h"
#include "engine/saving/checkpoint_contents.h"
#include "engine/schedules.h"
#include "engine/setup.h"
#include "engine/state_placement.h"
#include "engine/step_hashes.h"
#include "engine/tensor_shares.h"
#include "engine/timeline_session.h"
#include "zero/interception.h"

namespace zerorun {

namespace {

void log_precision(const PrecisionConfig& precision) {
  if (precision.moments_in_8_bits)
    log_info("optimizer states are in 8 bits, with a scale for each 256 elements");
  if (precision.training == Dtype::fp32) {
    if (precision.communication == Dtype::fp32) return;
    log_info(std::string("training in fp32; gradients travel in ") + name_of(precision.communication) +
             " (communication_data_type)");
    return;
  }
  const std::string start = precision.master_from_fp32 ? "parameters as given" : "rounded parameters";
  const std::string rounding = precision.rounding_seed ? ", rounded at random" : "";
  log_info(std::string("training in ") + name_of(precision.training) +
           (precision.master == precision.training
                ? " without fp32 master weights" + rounding
                : " with fp32 master weights that start from the " + start) +
           (precision.moments == Dtype::bf16 ? "; optimizer states are bf16" + rounding : "") +
           "; gradients travel in " + name_of(precision.communication) + " and are accumulated in " +
           name_of(precision.accumulation) + " (data_types.grad_accum_dtype)");
}

// DeepSpeed reads "Adam" as AdamW; elsewhere "Adam" means Adam with L2. So the log says which one is used.
void log_adam(const Config& config) {
  const AdamConfig* adam = config.optimizer ? std::get_if<AdamConfig>(&*config.optimizer) : nullptr;
  if (!adam || !adam->silently_decoupled) return;
  log_info("optimizer \"Adam\" decouples weight decay as AdamW does; with \"adam_w_mode\": false it is L2");
}

// Rank 0 says what the config's readers and initialize() have found.
void log_start(const Config& config, const InitializeOptions& options, bool is_divided, bool lacks_windows) {
  for (const std::string& warning : config.warnings) log_warning(warning);
  if (options.log_config) {
    for (const std::string& note : config.notes) log_info(note);
  }
  if (lacks_windows)
    log_warning("pipeline.reduce \"window\" has no effect: the program gives no list of layers");
  if (!is_divided && config.pipeline.recomputed_group > 0)
    log_warning("pipeline.activation_checkpoint_interval has no effect: the program gives no list of layers");
  for (const std::string& warning : warnings_of_monitors(config.monitoring, options.event_sink != nullptr))
    log_warning(warning);
  if (config.monitoring.dump_state) log_info("settings of the config\n" + config.resolved);
  log_adam(config);
  log_precision(config.precision);
}

// Ranks that share one copy of the parameters gather nothing.
void tell_of_zeropp(const Config& config, const Mesh& mesh) {
  if (mesh.world().rank() != 0) return;
  const auto tell = [](const char* key, const char* why) {
    log_info(std::string("zero_optimization.") + key + " has no effect: " + why);
  };
  constexpr char kShared[] = "the ranks share one copy of the parameters, and gather nothing";
  const bool shares = mesh.shards().shares_memory();
  if (shares && config.zero.hpz_partition_size > 1) tell("zero_hpz_partition_size", kShared);
  if (shares && config.zero.quantized_weights) tell("zero_quantized_weights", kShared);
  if (config.zero.quantized_gradients && !quantizes_gradients(config, mesh))
    tell("zero_quantized_gradients",
         "the ranks share memory, or are one rank or one group of sums (zerorun.sum_group): sums are exact");
}

// The forwards of the pipeline's example, if it has one: layers that do not fit together are found here.
void try_layers(EngineState& state, const Pipeline& pipeline) {
  if (!pipeline.example) return;
  const GeneratorStates generators({state.mesh.world().device().location()});
  eval_batch(state, {&*pipeline.example, 1});
  generators.restore();
}

void start_run_log(EngineState& state, std::vector<LoggedParameter> parameters) {
  if (!state.monitor->run_log()) return;
  if (state.config.monitoring.run_log.has_hashes()) {
    state.hashes =
        std::make_unique<StepHashes>(parameters, state.store, state.buckets, state.unbucketed, state.mesh);
    state.shard_states.show_updates_to(*state.hashes);
  }
  state.monitor->run_log()->start(run_record_of(state, std::move(parameters)));
}

// An engine that only computes has an optimizer without parameters.
Config without_optimizer(Config config) {
  config.optimizer = SgdConfig();
  config.scheduler.reset();
  config.precision.moments_in_8_bits = false;
  return config;
}

}  // namespace

Engine initialize(Model model, const Config& given, InitializeOptions options) {
  const ActivityScope activity(Activity::initializing);
  Config config = options.computes_only ? without_optimizer(given) : given;
  config.monitoring.timeline = wanted_timeline(config.monitoring.timeline);
  if (is_recording()) {
    throw UserError("initialize() inside a DeferredInit scope: end the scope once the model is built");
  }
  check_one_optimizer(config, options);
  check_schedules(config, options);
  check_offload_options(config, options);
  Mesh mesh = make_mesh(config, options, options.communicator ? options.communicator : connect());
  check_data_size(config, mesh);
  check_replicas(config, mesh);
  make_neighbour_groups(config, mesh);
  check_not_on_meta(model, mesh.world().device().location());
  std::optional<DividedModel> divided;
  const auto divide = [&] { divided = divide_model(model, config, options, mesh); };
  if (mesh.sizes().pipeline > 1) {
    on_all_ranks(mesh.world(), "the layers of the pipeline", divide);
  } else {
    divide();
  }
  const bool lacks_windows = !divided && config.pipeline.reduces_by_window;
  if (lacks_windows) config.pipeline.reduces_by_window = false;
  const auto is_elsewhere = [&](const at::Tensor& tensor) {
    return divided && !divided->stages.at(tensor.unsafeGetTensorImpl()).contains(mesh.coordinates().pipeline);
  };
  ModelParameters parameters = collect_parameters(model, config, options, is_elsewhere);
  parameters.is_divided = divided.has_value();
  parameters.has_tensor_plan = has_tensor_plan(options, mesh);
  check_ranks_agree(parameters, describe_settings(config, options), mesh);
  if (divided) agree_on_groups(parameters, *divided, mesh);
  auto monitor = std::make_unique<RunMonitor>(config.monitoring, mesh, options.event_sink);
  split_parameters(parameters, model, config, options, mesh);
  write_resolved_config(config, options.output_folder, mesh.world());
  if (mesh.world().rank() == 0) log_start(config, options, divided.has_value(), lacks_windows);
  tell_of_zeropp(config, mesh);
  std::vector<LoggedParameter> logged;
  if (monitor->run_log()) logged = logged_parameters(parameters);
  WholeModel whole;
  std::vector<TensorElsewhere> elsewhere;
  if (divided) {
    whole = whole_model(parameters, model);
    elsewhere = keep_stage(model, parameters, *divided, config, mesh);
  }
  auto state = kept_by_forks(std::make_shared<EngineState>(std::move(model), config, std::move(mesh),
                                                           std::move(parameters), options));
  state->monitor = std::move(monitor);
  start_run_log(*state, std::move(logged));
  leave_to_other_stages(elsewhere, state->mesh.coordinates().pipeline);
  state->start_recomputation(divided.has_value());
  if (divided) state->start_pipeline(std::move(*divided), std::move(whole), options);
  log_offload(config, state->store, state->mesh.world());
  state->flops.begin(0);
  if (state->stage) try_layers(*state, *options.pipeline);
  state->memory.end_step(0, state->bytes_by_use());
  return_freed_memory();  // memory that parameters had before they moved into buckets
  return Engine(std::move(state));
}

Engine initialize(Model model, const std::filesystem::path& ds_config, InitializeOptions options) {
  if (!options.communicator) options.communicator = connect();
  const Config config = load_config(
      ds_config, {.world_size = options.communicator->world_size(),
                  .mesh = options.mesh,
                  .arguments = options.arguments,
                  .hidden_size = options.hidden_size ? options.hidden_size : hidden_size_of(model)});
  return initialize(std::move(model), config, std::move(options));
}

Engine initialize(torch::nn::Module& model, const Config& config, InitializeOptions options) {
  return initialize(model_of(model), config, std::move(options));
}

Engine initialize(torch::nn::Module& model, const std::filesystem::path& ds_config,
                  InitializeOptions options) {
  return initialize(model_of(model), ds_config, std::move(options));
}

}  // namespace zerorun
