"""Which names the package deepspeed has, and where each one is.

MODULES: for each module where its names are: {module: {source: "name name=other ..."}}. `name=other` is the source's `other`; ALL
is every public name of the source. REFUSED: names that can be imported and do nothing but raise an error with this remedy."""

ALL = "*"

_ENGINE = {"zerorun": "initialize", "zerorun.engine": "DeepSpeedEngine"}
_STATES = ("safe_get_full_fp32_param safe_get_full_grad safe_get_full_optimizer_state safe_set_full_fp32_param "
           "safe_set_full_grad safe_set_full_optimizer_state")
_LEAVES = ("set_z3_leaf_modules unset_z3_leaf_modules get_z3_leaf_modules z3_leaf_module set_z3_leaf_module "
           "set_z3_leaf_modules_by_name set_z3_leaf_modules_by_suffix")
_BUILT = "zerorun.as_deepspeed.op_builder"
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
    "deepspeed.accelerator": {
        "zerorun.accelerator": "get_accelerator is_current_accelerator_supported DeepSpeedAccelerator=Accelerator"},
    "deepspeed.accelerator.real_accelerator": {"zerorun.accelerator": "get_accelerator is_current_accelerator_supported"},
    "deepspeed.checkpoint": {},
    "deepspeed.checkpoint.constants": {},
    "deepspeed.checkpoint.ds_to_universal": {},
    "deepspeed.checkpoint.utils": {"zerorun.runtime.utils": "clone_tensors_for_torch_save"},
    "deepspeed.comm": {"zerorun.comm": ALL},
    "deepspeed.comm.comm": {"zerorun.comm": ALL},
    "deepspeed.git_version_info": {"zerorun.as_deepspeed": "version=VERSION", _BUILT: "torch_info compatible_ops"},
    "deepspeed.launcher": {},
    "deepspeed.launcher.runner": {"zerorun.as_deepspeed.constants": "DEEPSPEED_ENVIRONMENT_NAME"},
    "deepspeed.moe": {},
    "deepspeed.moe.layer": {},
    "deepspeed.ops": {_BUILT: "__compatible_ops__=compatible_ops"},
    "deepspeed.ops.adagrad": {"zerorun.ops.adagrad": "DeepSpeedCPUAdagrad"},
    "deepspeed.ops.adam": {"zerorun.ops.adam": "DeepSpeedCPUAdam FusedAdam"},
    "deepspeed.ops.aio": {_BUILT: "AsyncIOBuilder"},
    "deepspeed.ops.lamb": {"zerorun.ops.lamb": "FusedLamb"},
    "deepspeed.ops.lion": {"zerorun.ops.lion": "DeepSpeedCPULion FusedLion"},
    "deepspeed.ops.op_builder": {_BUILT: ALL},
    "deepspeed.ops.transformer": {},
    "deepspeed.pipe": {},
    "deepspeed.profiling": {},
    "deepspeed.profiling.flops_profiler": {},
    "deepspeed.runtime": {},
    "deepspeed.runtime.activation_checkpointing": {},
    "deepspeed.runtime.activation_checkpointing.checkpointing": {"zerorun.checkpointing": ALL},
    "deepspeed.runtime.base_optimizer": {
        "zerorun.optimizer": "DeepSpeedOptimizer=ZeroOptimizer ZeROOptimizer=ZeroOptimizer"},
    "deepspeed.runtime.bf16_optimizer": {},
    "deepspeed.runtime.config": {"zerorun._core": "DeepSpeedConfigError=UserError",
                                 "zerorun.as_deepspeed.constants": "get_gradient_clipping"},
    "deepspeed.runtime.constants": {"zerorun.as_deepspeed.constants": "GRADIENT_CLIPPING_DEFAULT"},
    "deepspeed.runtime.dataloader": {"zerorun.data": "RepeatingLoader"},
    "deepspeed.runtime.engine": _ENGINE,
    "deepspeed.runtime.fp16": {},
    "deepspeed.runtime.fp16.fused_optimizer": {},
    "deepspeed.runtime.fp16.unfused_optimizer": {},
    "deepspeed.runtime.lr_schedules": {"zerorun.runtime.lr_schedules": ALL},
    "deepspeed.runtime.pipe": {},
    "deepspeed.runtime.sequence_parallel": {},
    "deepspeed.runtime.sequence_parallel.ulysses_sp": {},
    "deepspeed.runtime.utils": {"zerorun.runtime.utils": ALL},
    "deepspeed.runtime.zero": {**_ZERO, "zerorun.zero": _ZERO["zerorun.zero"] + " unwrap_model_for_generation"},
    "deepspeed.runtime.zero.config": {},
    "deepspeed.runtime.zero.leaf_module_config": {"zerorun.as_deepspeed.constants": (
        "DEFAULT_LEAF_MODULE_CLASSES DEFAULT_LEAF_MODULE_NAMES DEFAULT_LEAF_MODULE_NAME_SUFFIXES")},
    "deepspeed.runtime.zero.linear": {},
    "deepspeed.runtime.zero.offload_config": {
        "zerorun.as_deepspeed.constants": "OffloadDeviceEnum OffloadStateTypeEnum"},
    "deepspeed.runtime.zero.partition_parameters": {
        **_ZERO,
        "zerorun.accelerator": "get_accelerator",
        "zerorun.as_deepspeed.constants": "zero_wrapper_for_fp_tensor_constructor _orig_torch_arange",
    },
    "deepspeed.runtime.zero.stage3": {},
    "deepspeed.runtime.zero.stage_1_and_2": {},
    "deepspeed.runtime.zero.utils": {"zerorun.zero": "unwrap_model_for_generation"},
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
_FILES = "`zerorun checkpoint import` takes over DeepSpeed's checkpoints"
_LAYERS = "use torch's layers"
_CONFIGS = "pass the dict or the path to initialize(), which checks it; `zerorun config check` does so without a run"
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
        "DeepSpeedCheckpoint ZeROCheckpoint model_3d_desc get_model_3d_descriptor", _FILES),
    "deepspeed.checkpoint.constants": _refused(
        "PARAM PARAM_SHAPES OPTIMIZER_STATE_DICT UNIVERSAL_CHECKPOINT_INFO CHECKPOINT_PARALLEL_DIMS CHECKPOINT_PP_DEGREE "
        "CHECKPOINT_TP_DEGREE AUTOEP_LAYERS_KEY", _FILES),
    "deepspeed.checkpoint.ds_to_universal": _refused("main", _FILES),
    "deepspeed.moe.layer": _refused("MoE", _EXPERTS),
    "deepspeed.ops.transformer": _refused("DeepSpeedTransformerLayer DeepSpeedTransformerConfig", _LAYERS),
    "deepspeed.pipe": _refused("PipelineModule LayerSpec TiedLayerSpec", _PIPELINE),
    "deepspeed.profiling.flops_profiler": _refused("FlopsProfiler get_model_profile", "use torch.utils.flop_counter"),
    "deepspeed.runtime.bf16_optimizer": _refused("BF16_Optimizer", _INTERNAL),
    "deepspeed.runtime.config": _refused(
        "DeepSpeedConfig", "pass the dict or the path to initialize(); engine.config is what was passed"),
    "deepspeed.runtime.dataloader": _refused(
        "DeepSpeedDataLoader", "use torch.utils.data.DataLoader, or initialize(training_data=...)"),
    "deepspeed.runtime.fp16.fused_optimizer": _refused("FP16_Optimizer", _INTERNAL),
    "deepspeed.runtime.fp16.unfused_optimizer": _refused("FP16_UnfusedOptimizer", _INTERNAL),
    "deepspeed.runtime.pipe": _refused("PipelineModule LayerSpec TiedLayerSpec", _PIPELINE),
    "deepspeed.runtime.sequence_parallel.ulysses_sp": _refused("UlyssesSPAttentionHF UlyssesSPDataLoaderAdapter", _SEQUENCES),
    "deepspeed.runtime.zero": _refused("TiledLinear TiledLinearReturnBias", "use torch.nn.Linear"),
    "deepspeed.runtime.zero.config": _refused(
        "DeepSpeedZeroConfig DeepSpeedZeroOffloadOptimizerConfig DeepSpeedZeroOffloadParamConfig", _CONFIGS),
    "deepspeed.runtime.zero.linear": _refused("zero3_linear_wrap LinearModuleForZeroStage3", _INTERNAL),
    "deepspeed.runtime.zero.offload_config": _refused(
        "DeepSpeedZeroOffloadOptimizerConfig DeepSpeedZeroOffloadParamConfig", _CONFIGS),
    "deepspeed.runtime.zero.partition_parameters": _refused(
        "MultipleAllGatherHandles AllGatherHandle InsertPostInitMethodToModuleSubClasses partitioned_param_data_shape", _INTERNAL),
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
    "deepspeed.runtime.zero.utils": _refused("ZeRORuntimeException", _INTERNAL),
    "deepspeed.sequence.layer": _refused("DistributedAttention", _SEQUENCES),
    "deepspeed.utils": {
        **_refused("safe_get_local_fp32_param safe_get_local_grad safe_get_local_optimizer_state safe_set_local_fp32_param "
                   "safe_set_local_grad safe_set_local_optimizer_state", _LOCAL),
        **_refused("OnDevice", "build the model under deepspeed.zero.Init(), or torch.device('meta')"),
    },
}
