"""Which names the package deepspeed has, and where each one is.

MODULES: for each module where its names are: {module: {source: "name name=other ..."}}. `name=other` is the source's `other`; ALL
is every public name of the source. REFUSED: names that can be imported and do nothing but raise an error with this remedy."""

ALL = "*"

_ENGINE = {"zerorun": "initialize", "zerorun.engine": "DeepSpeedEngine"}
_STATES = ("safe_get_full_fp32_param safe_get_full_grad safe_get_full_optimizer_state safe_set_full_fp32_param "
           "safe_set_full_grad safe_set_full_optimizer_state")
_LEAVES = "set_z3_leaf_modules unset_z3_leaf_modules get_z3_leaf_modules z3_leaf_module set_z3_leaf_module"
_GROUPS = [f"get_{kind}_parallel_{what}" for kind in ("data", "model", "sequence") for what in ("group", "rank", "world_size")]
_GROUPS.append("get_data_parallel_group_ranks")
_OF_BOTH = [f"get_sequence_data_parallel_{what}" for what in ("group", "rank", "world_size")]
_LOGGING = {"zerorun.utils": "logger log_dist log_dist_once"}
_ZERO = {"zerorun.zero": "Init GatheredParameters register_external_parameter unregister_external_parameter",
         "zerorun.partitioned": "ZeroParamStatus ZeroParamType"}

MODULES = {
    "deepspeed": {
        "zerorun": "initialize init_distributed add_config_arguments DeepSpeedEngine",
        "zerorun.optimizer": "DeepSpeedOptimizer=ZeroOptimizer ZeROOptimizer=ZeroOptimizer",
        "zerorun._core": "DeepSpeedConfigError=UserError",
        "zerorun.accelerator": "get_accelerator",
        "zerorun.utils": "logger log_dist",
        "zerorun.as_deepspeed": "version=VERSION",
        "deepspeed.runtime": "zero",
        "deepspeed.runtime.activation_checkpointing": "checkpointing",
        "deepspeed": "dist=comm",
    },
    "deepspeed.accelerator": {"zerorun.accelerator": "get_accelerator DeepSpeedAccelerator=Accelerator"},
    "deepspeed.accelerator.real_accelerator": {"zerorun.accelerator": "get_accelerator"},
    "deepspeed.checkpoint": {},
    "deepspeed.checkpoint.utils": {"zerorun.runtime.utils": "clone_tensors_for_torch_save"},
    "deepspeed.comm": {"zerorun.comm": ALL},
    "deepspeed.comm.comm": {"zerorun.comm": ALL},
    "deepspeed.launcher": {},
    "deepspeed.launcher.runner": {"zerorun.as_deepspeed.constants": "DEEPSPEED_ENVIRONMENT_NAME"},
    "deepspeed.moe": {},
    "deepspeed.moe.layer": {},
    "deepspeed.ops": {},
    "deepspeed.ops.adagrad": {"zerorun.ops.adagrad": "DeepSpeedCPUAdagrad"},
    "deepspeed.ops.adam": {"zerorun.ops.adam": "DeepSpeedCPUAdam FusedAdam"},
    "deepspeed.ops.lamb": {"zerorun.ops.lamb": "FusedLamb"},
    "deepspeed.ops.lion": {"zerorun.ops.lion": "DeepSpeedCPULion FusedLion"},
    "deepspeed.ops.transformer": {},
    "deepspeed.pipe": {},
    "deepspeed.profiling": {},
    "deepspeed.profiling.flops_profiler": {},
    "deepspeed.runtime": {},
    "deepspeed.runtime.activation_checkpointing": {},
    "deepspeed.runtime.activation_checkpointing.checkpointing": {"zerorun.checkpointing": ALL},
    "deepspeed.runtime.base_optimizer": {
        "zerorun.optimizer": "DeepSpeedOptimizer=ZeroOptimizer ZeROOptimizer=ZeroOptimizer"},
    "deepspeed.runtime.config": {"zerorun._core": "DeepSpeedConfigError=UserError"},
    "deepspeed.runtime.dataloader": {"zerorun.data": "RepeatingLoader"},
    "deepspeed.runtime.engine": _ENGINE,
    "deepspeed.runtime.lr_schedules": {"zerorun.runtime.lr_schedules": ALL},
    "deepspeed.runtime.pipe": {},
    "deepspeed.runtime.sequence_parallel": {},
    "deepspeed.runtime.sequence_parallel.ulysses_sp": {},
    "deepspeed.runtime.utils": {"zerorun.runtime.utils": ALL},
    "deepspeed.runtime.zero": _ZERO,
    "deepspeed.runtime.zero.partition_parameters": {
        **_ZERO,
        "zerorun.accelerator": "get_accelerator",
        "zerorun.as_deepspeed.constants": "zero_wrapper_for_fp_tensor_constructor _orig_torch_arange",
    },
    "deepspeed.runtime.zero.stage3": {},
    "deepspeed.runtime.zero.stage_1_and_2": {},
    "deepspeed.sequence": {},
    "deepspeed.sequence.layer": {},
    "deepspeed.utils": {
        **_LOGGING,
        "zerorun.utils": f"logger log_dist log_dist_once RepeatingLoader {_STATES} {_LEAVES}",
    },
    "deepspeed.utils.groups": {"zerorun.groups": " ".join(
        [ALL, *(f"_{name}={name}" for name in _GROUPS), *(f"_{name}={name.replace('sequence_', '')}" for name in _OF_BOTH)])},
    "deepspeed.utils.logging": _LOGGING,
    "deepspeed.utils.tensor_fragment": {"zerorun.utils": _STATES},
    "deepspeed.utils.z3_leaf_module": {"zerorun.utils": _LEAVES},
    "deepspeed.utils.zero_to_fp32": {"zerorun.zero_to_fp32": ALL},
}

_INFERENCE = "serve the model with another package: save it with engine.save_16bit_model()"
_PIPELINE = "train the model as one torch.nn.Module at stage 3"
_TENSORS = "train at stage 3, which partitions every parameter over all ranks"
_SEQUENCES = "leave sequence parallelism out: each rank computes whole sequences"
_EXPERTS = "build experts as plain modules, and gather them with deepspeed.utils.set_z3_leaf_modules()"
_LOCAL = "take safe_get_full_... and safe_set_full_..., which have the whole state on all ranks"
_ESTIMATES = "`zerorun config explain` has the planned memory of a model"
_LAYERS = "use torch's layers"
_INTERNAL = "it is DeepSpeed's own; ask the engine and its optimizer, which are zerorun's"


def _refused(names, remedy):
    return dict.fromkeys(names.split(), remedy)


REFUSED = {
    "deepspeed": {
        **_refused("init_inference default_inference_config InferenceEngine DeepSpeedInferenceConfig", _INFERENCE),
        **_refused("PipelineModule PipelineEngine", _PIPELINE),
        **_refused("tp_model_init set_autotp_mode", _TENSORS),
        **_refused("DeepSpeedTransformerLayer DeepSpeedTransformerConfig replace_transformer_layer", _LAYERS),
        **_refused("DeepSpeedHybridEngine", "call engine.module.generate()"),
        **_refused("OnDevice", "build the model under deepspeed.zero.Init(), or torch.device('meta')"),
        **_refused("DeepSpeedConfig", "pass the dict or the path to initialize(); engine.config is what was passed"),
        **_refused("DeepSpeedDataLoader", "use torch.utils.data.DataLoader, or initialize(training_data=...)"),
    },
    "deepspeed.checkpoint": _refused(
        "DeepSpeedCheckpoint ZeROCheckpoint", "`zerorun checkpoint import` takes over DeepSpeed's checkpoints"),
    "deepspeed.moe.layer": _refused("MoE", _EXPERTS),
    "deepspeed.ops.transformer": _refused("DeepSpeedTransformerLayer DeepSpeedTransformerConfig", _LAYERS),
    "deepspeed.pipe": _refused("PipelineModule LayerSpec TiedLayerSpec", _PIPELINE),
    "deepspeed.profiling.flops_profiler": _refused("FlopsProfiler get_model_profile", "use torch.utils.flop_counter"),
    "deepspeed.runtime.config": _refused(
        "DeepSpeedConfig", "pass the dict or the path to initialize(); engine.config is what was passed"),
    "deepspeed.runtime.dataloader": _refused(
        "DeepSpeedDataLoader", "use torch.utils.data.DataLoader, or initialize(training_data=...)"),
    "deepspeed.runtime.pipe": _refused("PipelineModule LayerSpec TiedLayerSpec", _PIPELINE),
    "deepspeed.runtime.sequence_parallel.ulysses_sp": _refused("UlyssesSPAttentionHF UlyssesSPDataLoaderAdapter", _SEQUENCES),
    "deepspeed.runtime.zero": _refused("TiledLinear TiledLinearReturnBias", "use torch.nn.Linear"),
    "deepspeed.runtime.zero.stage3": {
        **_refused("DeepSpeedZeroOptimizer_Stage3", _INTERNAL),
        **_refused("estimate_zero3_model_states_mem_needs estimate_zero3_model_states_mem_needs_all_live "
                   "estimate_zero3_model_states_mem_needs_all_cold", _ESTIMATES),
    },
    "deepspeed.runtime.zero.stage_1_and_2": {
        **_refused("DeepSpeedZeroOptimizer", _INTERNAL),
        **_refused("estimate_zero2_model_states_mem_needs estimate_zero2_model_states_mem_needs_all_live "
                   "estimate_zero2_model_states_mem_needs_all_cold", _ESTIMATES),
    },
    "deepspeed.sequence.layer": _refused("DistributedAttention", _SEQUENCES),
    "deepspeed.utils": {
        **_refused("safe_get_local_fp32_param safe_get_local_grad safe_get_local_optimizer_state safe_set_local_fp32_param "
                   "safe_set_local_grad safe_set_local_optimizer_state", _LOCAL),
        **_refused("OnDevice", "build the model under deepspeed.zero.Init(), or torch.device('meta')"),
    },
}
