"""Which names the package deepspeed has, and where each one is.

MODULES: for each module where its names are: {module: {source: "name name=other ..."}}. `name=other` is the source's `other`; ALL
is every public name of the source, but for modules. REFUSED: names that can be imported and do nothing but raise an error with this remedy.
REFUSED_MODULES: modules, with those below them, that can be imported, and whose names are all refused with this remedy, but for
those in MODULES."""

ALL = "*"

_STATES = ("safe_get_full_fp32_param safe_get_full_grad safe_get_full_optimizer_state safe_set_full_fp32_param "
           "safe_set_full_grad safe_set_full_optimizer_state")
_LEAVES = ("set_z3_leaf_modules set_z3_leaf_modules_by_name set_z3_leaf_modules_by_suffix unset_z3_leaf_modules "
           "get_z3_leaf_modules z3_leaf_module set_z3_leaf_module")
_BUILDERS, _CONFIGS = "zerorun.as_deepspeed.op_builder", "zerorun.as_deepspeed.configs"
_OF_GROUPS = ("group", "rank", "world_size")
_GROUPS = [f"get_{kind}_parallel_{what}" for kind in ("data", "model", "sequence") for what in _OF_GROUPS]
_GROUPS.append("get_data_parallel_group_ranks")
_OF_BOTH = [f"get_sequence_data_parallel_{what}" for what in _OF_GROUPS]
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
        "deepspeed.pipe": "PipelineModule",
        "deepspeed.runtime.pipe": "PipelineEngine",
        "deepspeed.inference": "InferenceEngine DeepSpeedInferenceConfig",
        "deepspeed.ops.transformer": "DeepSpeedTransformerLayer DeepSpeedTransformerConfig",
    },
    "deepspeed.accelerator": {
        "zerorun.accelerator": "get_accelerator is_current_accelerator_supported DeepSpeedAccelerator=Accelerator"},
    "deepspeed.accelerator.real_accelerator": {"zerorun.accelerator": "get_accelerator"},
    "deepspeed.checkpoint": {},
    "deepspeed.checkpoint.utils": {"zerorun.runtime.utils": "clone_tensors_for_torch_save"},
    "deepspeed.comm": {"zerorun.comm": ALL},
    "deepspeed.comm.comm": {"zerorun.comm": ALL},
    "deepspeed.git_version_info": {"zerorun.as_deepspeed": "version=VERSION", "zerorun.as_deepspeed.constants": "torch_info",
                                   _BUILDERS: "compatible_ops"},
    "deepspeed.launcher": {},
    "deepspeed.launcher.runner": {"zerorun.as_deepspeed.constants": "DEEPSPEED_ENVIRONMENT_NAME"},
    "deepspeed.ops": {_BUILDERS: "__compatible_ops__=compatible_ops"},
    "deepspeed.ops.adagrad": {"zerorun.ops.adagrad": "DeepSpeedCPUAdagrad"},
    "deepspeed.ops.adam": {"zerorun.ops.adam": "DeepSpeedCPUAdam FusedAdam"},
    "deepspeed.ops.adam.cpu_adam": {"zerorun.ops.adam": "DeepSpeedCPUAdam"},
    "deepspeed.ops.adam.fused_adam": {"zerorun.ops.adam": "FusedAdam"},
    "deepspeed.ops.aio": {_BUILDERS: "AsyncIOBuilder"},
    "deepspeed.ops.lamb": {"zerorun.ops.lamb": "FusedLamb"},
    "deepspeed.ops.lion": {"zerorun.ops.lion": "DeepSpeedCPULion FusedLion"},
    "deepspeed.ops.op_builder": {_BUILDERS: ALL},
    "deepspeed.runtime": {},
    "deepspeed.runtime.activation_checkpointing": {},
    "deepspeed.runtime.activation_checkpointing.checkpointing": {"zerorun.checkpointing": ALL},
    "deepspeed.runtime.base_optimizer": {
        "zerorun.optimizer": "DeepSpeedOptimizer=ZeroOptimizer ZeROOptimizer=ZeroOptimizer"},
    "deepspeed.runtime.config": {"zerorun._core": "DeepSpeedConfigError=UserError", _CONFIGS: "get_gradient_clipping"},
    "deepspeed.runtime.constants": {_CONFIGS: "GRADIENT_CLIPPING_DEFAULT"},
    "deepspeed.runtime.dataloader": {"zerorun.data": "RepeatingLoader"},
    "deepspeed.runtime.engine": {"zerorun.engine": "DeepSpeedEngine"},
    "deepspeed.runtime.lr_schedules": {"zerorun.runtime.lr_schedules": ALL},
    "deepspeed.runtime.utils": {"zerorun.runtime.utils": ALL},
    "deepspeed.runtime.zero": {**_ZERO, "zerorun.zero": _ZERO["zerorun.zero"] + " unwrap_model_for_generation"},
    "deepspeed.runtime.zero.leaf_module_config": {
        _CONFIGS: "DEFAULT_LEAF_MODULE_CLASSES DEFAULT_LEAF_MODULE_NAMES DEFAULT_LEAF_MODULE_NAME_SUFFIXES"},
    "deepspeed.runtime.zero.offload_config": {"zerorun.as_deepspeed.constants": "OffloadDeviceEnum OffloadStateTypeEnum"},
    "deepspeed.runtime.zero.partition_parameters": {
        **_ZERO,
        "zerorun.accelerator": "get_accelerator",
        "zerorun.as_deepspeed.constants": "zero_wrapper_for_fp_tensor_constructor _orig_torch_arange",
    },
    "deepspeed.utils": {
        **_LOGGING,
        "zerorun.utils": f"logger log_dist log_dist_once RepeatingLoader {_STATES} {_LEAVES}",
    },
    "deepspeed.utils.groups": {"zerorun.groups": " ".join(
        [ALL, *(f"_{name}={name}" for name in _GROUPS), *(f"_{name}={name.replace('sequence_', '')}" for name in _OF_BOTH)])},
    "deepspeed.utils.logging": _LOGGING,
    "deepspeed.utils.torch": {"zerorun.as_deepspeed.constants": "required_torch_version"},
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
_LAYERS = "use torch's layers"
_INTERNAL = "it is DeepSpeed's own; ask the engine and its optimizer, which are zerorun's"


def _refused(names, remedy):
    return dict.fromkeys(names.split(), remedy)


_CONFIG = _refused("DeepSpeedConfig", "pass the dict or the path to initialize(); engine.config is what was passed")
_LOADER = _refused("DeepSpeedDataLoader", "use torch.utils.data.DataLoader, or initialize(training_data=...)")
_PARTS = "pass the dict or the path to initialize(), which checks it; `zerorun config check` does so without a run"
_DEVICE = _refused("OnDevice", "build the model under deepspeed.zero.Init(), or torch.device('meta')")

REFUSED = {
    "deepspeed": {
        **_refused("init_inference default_inference_config", _INFERENCE),
        **_refused("tp_model_init set_autotp_mode", _TENSORS),
        **_refused("replace_transformer_layer", _LAYERS),
        **_refused("DeepSpeedHybridEngine", "call engine.module.generate()"),
        **_CONFIG, **_LOADER, **_DEVICE,
    },
    "deepspeed.runtime.config": _CONFIG,
    "deepspeed.runtime.dataloader": _LOADER,
    "deepspeed.runtime.zero": _refused("TiledLinear TiledLinearReturnBias", "use torch.nn.Linear"),
    "deepspeed.runtime.engine": _refused("_checkpoint_parallel_metadata", _INTERNAL),
    "deepspeed.runtime.zero.offload_config": _refused(
        "DeepSpeedZeroOffloadOptimizerConfig DeepSpeedZeroOffloadParamConfig", _PARTS),
    "deepspeed.utils": {
        **_refused("safe_get_local_fp32_param safe_get_local_grad safe_get_local_optimizer_state safe_set_local_fp32_param "
                   "safe_set_local_grad safe_set_local_optimizer_state", _LOCAL),
        **_DEVICE,
    },
}

REFUSED_MODULES = {
    **_refused("deepspeed.autotuning deepspeed.compression deepspeed.linear deepspeed.runtime.data_pipeline "
               "deepspeed.runtime.hybrid_engine deepspeed.runtime.zenflow deepspeed.runtime.domino deepspeed.runtime.superoffload",
               "it is no part of ZeRO; leave it out"),
    **_refused("deepspeed.checkpoint", "`zerorun checkpoint` lists, converts and compares checkpoints"),
    **_refused("deepspeed.runtime.zero.config", _PARTS),
    **_refused("deepspeed.inference deepspeed.model_implementations", _INFERENCE),
    **_refused("deepspeed.module_inject deepspeed.runtime.tensor_parallel", _TENSORS),
    **_refused("deepspeed.moe", _EXPERTS),
    **_refused("deepspeed.monitor", "log engine.get_lr() and engine.get_global_grad_norm() in the training loop"),
    **_refused("deepspeed.ops.aio deepspeed.ops.op_builder deepspeed.ops.quantizer deepspeed.ops.fp_quantizer",
               "zerorun's kernels are compiled ahead, and its own"),
    **_refused("deepspeed.ops.transformer deepspeed.ops.deepspeed4science deepspeed.ops.random_ltd", _LAYERS),
    **_refused("deepspeed.pipe deepspeed.runtime.pipe", _PIPELINE),
    **_refused("deepspeed.profiling", "use torch.profiler, and torch.utils.flop_counter for floating-point operations"),
    **_refused("deepspeed.sequence deepspeed.runtime.sequence_parallel", _SEQUENCES),
    **_refused("deepspeed.runtime.bf16_optimizer deepspeed.runtime.fp16 deepspeed.runtime.checkpoint_engine deepspeed.runtime.comm "
               "deepspeed.runtime.swap_tensor deepspeed.runtime.zero.linear deepspeed.runtime.zero.parameter_offload "
               "deepspeed.runtime.zero.partition_parameters deepspeed.runtime.zero.stage3 deepspeed.runtime.zero.stage_1_and_2 "
               "deepspeed.runtime.zero.utils", _INTERNAL),
}


def remedy_of_module(module):
    """The remedy if the module, or one above it, is refused; else None."""
    while module and module not in REFUSED_MODULES:
        module = module.rpartition(".")[0]
    return REFUSED_MODULES.get(module)
