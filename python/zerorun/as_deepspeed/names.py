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
_CONSTANTS, _SECTIONS = "zerorun.as_deepspeed.constants", "zerorun.as_deepspeed.sections"
_OPTIMIZER_TYPES = "ADAGRAD_OPTIMIZER ADAM_OPTIMIZER ADAMW_OPTIMIZER LAMB_OPTIMIZER LION_OPTIMIZER MUON_OPTIMIZER"
_KEYS = ("TRAIN_BATCH_SIZE TRAIN_MICRO_BATCH_SIZE_PER_GPU GRADIENT_ACCUMULATION_STEPS GRADIENT_CLIPPING OPTIMIZER OPTIMIZER_PARAMS "
         "SCHEDULER SCHEDULER_PARAMS TYPE FP16 BFLOAT16 STEPS_PER_PRINT PRESCALE_GRADIENTS GRADIENT_PREDIVIDE_FACTOR "
         "ZERO_ALLOW_UNTESTED_OPTIMIZER ROUTE_TRAIN ROUTE_EVAL ROUTE_PREDICT")
_OFFLOADS = "DeepSpeedZeroOffloadOptimizerConfig DeepSpeedZeroOffloadParamConfig"
_OF_GROUPS = ("group", "rank", "world_size")
_GROUPS = [f"get_{kind}_parallel_{what}" for kind in ("data", "model", "sequence") for what in _OF_GROUPS]
_GROUPS.append("get_data_parallel_group_ranks")
_OF_BOTH = [f"get_sequence_data_parallel_{what}" for what in _OF_GROUPS]
_LOGGING = {"zerorun.utils": "logger log_dist log_dist_once set_log_level_from_string"}
_LAYERS_OF_PIPELINES = "PipelineModule LayerSpec TiedLayerSpec"
_ZERO = {"zerorun.zero": "Init GatheredParameters register_external_parameter unregister_external_parameter",
         "zerorun.partitioned": "ZeroParamStatus ZeroParamType"}

MODULES = {
    "deepspeed": {
        "zerorun": "initialize init_distributed add_config_arguments DeepSpeedEngine tp_model_init set_autotp_mode",
        "zerorun.optimizer": "DeepSpeedOptimizer=ZeroOptimizer ZeROOptimizer=ZeroOptimizer",
        "zerorun._core": "DeepSpeedConfigError=UserError",
        "zerorun.accelerator": "get_accelerator",
        "zerorun.utils": "logger log_dist",
        "zerorun.as_deepspeed": "version=VERSION",
        _CONFIGS: "ADAM_OPTIMIZER LAMB_OPTIMIZER MUON_OPTIMIZER",
        _CONSTANTS: "TORCH_DISTRIBUTED_DEFAULT_PORT git_hash git_branch is_compile_supported",
        "deepspeed.runtime": "zero",
        "deepspeed.runtime.activation_checkpointing": "checkpointing",
        "deepspeed": "dist=comm",
        "zerorun.pipe": "PipelineModule",
        "zerorun.runtime.pipe.engine": "PipelineEngine",
        "deepspeed.inference": "InferenceEngine DeepSpeedInferenceConfig",
        "deepspeed.ops.transformer": "DeepSpeedTransformerLayer DeepSpeedTransformerConfig",
    },
    "deepspeed.accelerator": {
        "zerorun.accelerator": "get_accelerator is_current_accelerator_supported DeepSpeedAccelerator=Accelerator"},
    "deepspeed.accelerator.abstract_accelerator": {"zerorun.accelerator": "DeepSpeedAccelerator=Accelerator"},
    "deepspeed.accelerator.real_accelerator": {"zerorun.accelerator": "get_accelerator"},
    "deepspeed.checkpoint": {},
    "deepspeed.checkpoint.utils": {"zerorun.runtime.utils": "clone_tensors_for_torch_save"},
    "deepspeed.comm": {"zerorun.comm": ALL},
    "deepspeed.comm.comm": {"zerorun.comm": ALL},
    "deepspeed.comm.reduce_op": {"zerorun.comm": "ReduceOp"},
    "deepspeed.constants": {_CONSTANTS: "TORCH_DISTRIBUTED_DEFAULT_PORT default_pg_timeout"},
    "deepspeed.git_version_info": {"zerorun.as_deepspeed": "version=VERSION", _CONSTANTS: "torch_info git_hash git_branch",
                                   _BUILDERS: "compatible_ops"},
    "deepspeed.launcher": {},
    "deepspeed.launcher.runner": {_CONSTANTS: "DEEPSPEED_ENVIRONMENT_NAME TORCH_DISTRIBUTED_DEFAULT_PORT"},
    "deepspeed.ops": {_BUILDERS: "__compatible_ops__=compatible_ops",
                      "deepspeed.ops.transformer": "DeepSpeedTransformerLayer DeepSpeedTransformerConfig"},
    "deepspeed.ops.adagrad": {"zerorun.ops.adagrad": "DeepSpeedCPUAdagrad"},
    "deepspeed.ops.adagrad.cpu_adagrad": {"zerorun.ops.adagrad": "DeepSpeedCPUAdagrad"},
    "deepspeed.ops.adam": {"zerorun.ops.adam": "DeepSpeedCPUAdam FusedAdam"},
    "deepspeed.ops.adam.cpu_adam": {"zerorun.ops.adam": "DeepSpeedCPUAdam"},
    "deepspeed.ops.adam.fused_adam": {"zerorun.ops.adam": "FusedAdam"},
    "deepspeed.ops.aio": {_BUILDERS: "AsyncIOBuilder"},
    "deepspeed.ops.lamb": {"zerorun.ops.lamb": "FusedLamb"},
    "deepspeed.ops.lamb.fused_lamb": {"zerorun.ops.lamb": "FusedLamb"},
    "deepspeed.ops.lion": {"zerorun.ops.lion": "DeepSpeedCPULion FusedLion"},
    "deepspeed.ops.lion.cpu_lion": {"zerorun.ops.lion": "DeepSpeedCPULion"},
    "deepspeed.ops.lion.fused_lion": {"zerorun.ops.lion": "FusedLion"},
    "deepspeed.ops.op_builder": {_BUILDERS: ALL},
    "deepspeed.pipe": {"zerorun.pipe": _LAYERS_OF_PIPELINES},
    "deepspeed.runtime": {},
    "deepspeed.runtime.activation_checkpointing": {},
    "deepspeed.runtime.activation_checkpointing.checkpointing": {"zerorun.checkpointing": ALL},
    "deepspeed.runtime.base_optimizer": {
        "zerorun.optimizer": "DeepSpeedOptimizer=ZeroOptimizer ZeROOptimizer=ZeroOptimizer"},
    "deepspeed.runtime.compiler": {_CONSTANTS: "is_compile_supported", "torch.compiler": "disable is_compiling"},
    "deepspeed.runtime.config": {"zerorun._core": "DeepSpeedConfigError=UserError",
                                 _CONFIGS: f"get_gradient_clipping {_OPTIMIZER_TYPES} {_KEYS}"},
    "deepspeed.runtime.constants": {_CONFIGS: f"GRADIENT_CLIPPING_DEFAULT {_KEYS}"},
    "deepspeed.runtime.dataloader": {"zerorun.data": "RepeatingLoader"},
    "deepspeed.runtime.engine": {
        "zerorun.engine": "DeepSpeedEngine", "zerorun.optimizer": "ZeROOptimizer=ZeroOptimizer",
        "zerorun.partitioned": "ZeroParamStatus", _CONFIGS: _OPTIMIZER_TYPES,
        _CONSTANTS: "OffloadDeviceEnum OffloadStateTypeEnum"},
    "deepspeed.runtime.lr_schedules": {"zerorun.runtime.lr_schedules": ALL},
    "deepspeed.runtime.pipe": {"zerorun.runtime.pipe": f"{_LAYERS_OF_PIPELINES} ProcessTopology"},
    "deepspeed.runtime.pipe.engine": {"zerorun.runtime.pipe.engine": "PipelineEngine"},
    "deepspeed.runtime.pipe.module": {"zerorun.runtime.pipe.module": f"{_LAYERS_OF_PIPELINES} PipelineError"},
    "deepspeed.runtime.pipe.topology": {"zerorun.runtime.pipe.topology":
        "ProcessTopology PipeDataParallelTopology PipeModelDataParallelTopology PipelineParallelGrid"},
    "deepspeed.runtime.utils": {"zerorun.runtime.utils": ALL},
    "deepspeed.runtime.zero": {**_ZERO, "zerorun.zero": _ZERO["zerorun.zero"] + " unwrap_model_for_generation"},
    "deepspeed.runtime.zero.leaf_module_config": {
        _CONFIGS: "DEFAULT_LEAF_MODULE_CLASSES DEFAULT_LEAF_MODULE_NAMES DEFAULT_LEAF_MODULE_NAME_SUFFIXES",
        _SECTIONS: "DeepSpeedZeroLeafModuleConfig"},
    "deepspeed.runtime.zero.config": {
        _SECTIONS: f"DeepSpeedZeroConfig DeepSpeedZeroLeafModuleConfig {_OFFLOADS}", _CONSTANTS: "OffloadDeviceEnum"},
    "deepspeed.runtime.zero.offload_config": {_CONSTANTS: "OffloadDeviceEnum OffloadStateTypeEnum", _SECTIONS: _OFFLOADS},
    "deepspeed.runtime.zero.partition_parameters": {
        **_ZERO,
        "zerorun.accelerator": "get_accelerator",
        _CONSTANTS: "zero_wrapper_for_fp_tensor_constructor _orig_torch_arange",
    },
    "deepspeed.utils": {
        **_LOGGING,
        "zerorun.utils": f"{_LOGGING['zerorun.utils']} RepeatingLoader {_STATES} {_LEAVES}",
        _CONSTANTS: "instrument_w_nvtx",
    },
    "deepspeed.utils.groups": {"zerorun.groups": " ".join(
        [ALL, *(f"_{name}={name}" for name in _GROUPS), *(f"_{name}={name.replace('sequence_', '')}" for name in _OF_BOTH)])},
    "deepspeed.utils.logging": {"zerorun.utils": f"{_LOGGING['zerorun.utils']} log_levels get_log_level_from_string should_log_le "
                                                 "warning_once"},
    "deepspeed.utils.nvtx": {_CONSTANTS: "instrument_w_nvtx"},
    "deepspeed.utils.torch": {_CONSTANTS: "required_torch_version"},
    "deepspeed.utils.tensor_fragment": {"zerorun.utils": _STATES},
    "deepspeed.utils.z3_leaf_module": {"zerorun.utils": _LEAVES},
    "deepspeed.utils.zero_to_fp32": {"zerorun.zero_to_fp32": ALL},
}

_INFERENCE = "serve the model with another package: save it with engine.save_16bit_model()"
_SCHEDULE_OF_PIPELINES = "engine.train_batch() runs the stages of a PipelineModule"
_TENSORS = "call tp_model_init(), or set \"tensor_parallel\": {\"autotp_size\": 2} in the config"
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
_SCHEDULE = "name the schedule in the config, or pass lr_scheduler to initialize()"
_NORM = "call engine.get_global_grad_norm() after step(), and set \"gradient_clipping\" in the config"
_LOCALS = _refused("safe_get_local_fp32_param safe_get_local_grad safe_get_local_optimizer_state safe_set_local_fp32_param "
                   "safe_set_local_grad safe_set_local_optimizer_state", _LOCAL)
_FRAGMENTS = {
    **_refused("get_full_hp_param set_full_hp_param get_full_hp_grad set_full_hp_grad get_hp_fragment_mapping fragment_address "
               "map_to_flat_opt_states", _LOCAL),
    **_refused("safe_update_full_grad_vectorized", "call safe_get_full_grad() and safe_set_full_grad() for each parameter"),
}
_COMM = {
    **_refused("initialize_mesh_device", "leave it out; parameters are partitioned over all ranks"),
    **_refused("all_gather_coalesced all_reduce_coalesced", "call it for each tensor"),
    **_refused("get_comm_operation_count get_logged_comm_ops reset_log", "there is no log of communication; use torch.profiler"),
    **_refused("set_backend init_deepspeed_backend TorchBackend enable_symm_mem_for_group timed_op", "call init_distributed()"),
}
_DEVICE = _refused("OnDevice", "build the model under deepspeed.zero.Init(), or torch.device('meta')")

REFUSED = {
    "deepspeed": {
        **_refused("init_inference default_inference_config", _INFERENCE),
        **_refused("replace_transformer_layer revert_transformer_layer", _LAYERS),
        **_refused("add_tuning_arguments", _SCHEDULE),
        **_refused("set_optimizer_flags DeepSpeedOptimizerCallable DeepSpeedSchedulerCallable", _INTERNAL),
        **_refused("DeepSpeedHybridEngine", "call engine.module.generate()"),
        **_CONFIG, **_LOADER, **_DEVICE,
    },
    "deepspeed.runtime.config": _CONFIG,
    "deepspeed.runtime.dataloader": _LOADER,
    "deepspeed.comm": _COMM,
    "deepspeed.comm.comm": _COMM,
    "deepspeed.ops.adam": _refused("ZenFlowCPUAdam ZenFlowSelectiveAdamW ZenFlowSelectiveAdamW_stage3", "use DeepSpeedCPUAdam"),
    "deepspeed.runtime.activation_checkpointing.checkpointing": {
        **_refused("CheckpointFunction", "call checkpointing.checkpoint()"),
        **_refused("get_cuda_rng_tracker model_parallel_cuda_manual_seed model_parallel_reconfigure_tp_seed", "call torch.manual_seed()"),
        **_refused("partition_activations_in_checkpoint set_num_layers", "leave it out: checkpoint() recomputes on each rank"),
    },
    "deepspeed.runtime.lr_schedules": _refused(
        "add_tuning_arguments parse_arguments override_params get_config_from_args get_lr_from_config get_torch_optimizer", _SCHEDULE),
    "deepspeed.runtime.utils": {
        **_refused("clip_grad_norm_ get_global_norm get_grad_norm get_weight_norm get_flattened_grad_norm get_global_norm_of_tensors "
                   "clip_tensors_by_global_norm", _NORM),
        **_refused("CheckOverflow", "ask engine.was_step_applied() after step()"),
        **_refused("partition_uniform partition_balanced", "PipelineModule(partition_method=...) divides layers"),
        **_refused("PartitionedTensor", _SCHEDULE_OF_PIPELINES),
        **_refused("memory_status get_ma_status", "call see_memory_usage()"),
        **_refused("DummyOptim", "call initialize() without an optimizer for an engine that only computes"),
    },
    "deepspeed.runtime.zero": {
        **_refused("TiledLinear TiledLinearReturnBias", "use torch.nn.Linear"),
        **_refused("MiCS_Init", "use deepspeed.zero.Init(); parameters are partitioned over all ranks"),
        **_refused("DeepSpeedZeRoOffload DeepSpeedTensorOverride", _INTERNAL),
    },
    "deepspeed.runtime.engine": _refused("_checkpoint_parallel_metadata", _INTERNAL),
    "deepspeed.utils": {
        **_LOCALS, **_FRAGMENTS, **_DEVICE,
        **_refused("z3_leaf_parameter", "call get_z3_leaf_modules(), and look at parameters of these"),
        **_refused("link_hp_params lazy_init_hp_params_optimizer_state get_numactl_cmd get_caller_func", _INTERNAL),
    },
    "deepspeed.utils.logging": _refused("LoggerFactory print_configuration print_json_dist print_dist", "use Python's module logging"),
    "deepspeed.utils.tensor_fragment": {**_LOCALS, **_FRAGMENTS},
    "deepspeed.utils.torch": _refused("register_grad_hook jit_script_compat", "use torch's own functions"),
    "deepspeed.utils.zero_to_fp32": _refused(
        "parse_model_states parse_optim_states get_checkpoint_files zero_model_state", "checkpoints are zerorun's; "
        "get_fp32_state_dict_from_zero_checkpoint() has the weights"),
}

REFUSED_MODULES = {
    **_refused("deepspeed.autotuning deepspeed.compression deepspeed.linear deepspeed.runtime.data_pipeline "
               "deepspeed.runtime.hybrid_engine deepspeed.runtime.zenflow deepspeed.runtime.domino deepspeed.runtime.superoffload "
               "deepspeed.runtime.compression deepspeed.runtime.eigenvalue deepspeed.runtime.progressive_layer_drop "
               "deepspeed.runtime.quantize deepspeed.runtime.weight_quantizer deepspeed.runtime.hybrid_engine_graph "
               "deepspeed.runtime.rollout deepspeed.ops.sparse_attention deepspeed.ops.adam.zenflow_cpu_adam "
               "deepspeed.ops.adam.zenflow_torch_adam deepspeed.nvme",
               "it is no part of ZeRO; leave it out"),
    **_refused("deepspeed.checkpoint", "`zerorun checkpoint` lists, converts and compares checkpoints"),
    **_refused("deepspeed.nebula deepspeed.datastates deepspeed.runtime.model_checkpointing deepspeed.io",
               "engine.save_checkpoint(asynchronous=True) writes while training goes on"),
    **_refused("deepspeed.elasticity", "leave it out: a checkpoint is loaded with any number of ranks"),
    **_refused("deepspeed.env_report", "run `zerorun doctor`"),
    **_refused("deepspeed.compile", "call engine.compile()"),
    **_refused("deepspeed.comm.torch deepspeed.comm.backend deepspeed.comm.ccl deepspeed.comm.mori deepspeed.comm.utils "
               "deepspeed.comm.config deepspeed.comm.constants", "use deepspeed.comm"),
    **_refused("deepspeed.launcher", "start programs with the command deepspeed, which is `zerorun --as-deepspeed`"),
    **_refused("deepspeed.runtime.zero.config deepspeed.runtime.config_utils deepspeed.runtime.precision_config "
               "deepspeed.runtime.activation_checkpointing.config deepspeed.utils.config", _PARTS),
    **_refused("deepspeed.runtime.state_dict_factory", "`zerorun checkpoint` lists, converts and compares checkpoints"),
    **_refused("deepspeed.runtime.sparse_tensor", "sparse gradients become dense ones"),
    **_refused("deepspeed.runtime.torch_autocast", "set \"torch_autocast\" in the config"),
    **_refused("deepspeed.runtime.activation_checkpointing.offload_activations", "use torch.autograd.graph.save_on_cpu()"),
    **_refused("deepspeed.runtime.zero.mics deepspeed.runtime.zero.mics_utils", "parameters are partitioned over all ranks"),
    **_refused("deepspeed.runtime.zero.tiling", "use torch.nn.Linear"),
    **_refused("deepspeed.runtime.zero.muon", "set the type \"Muon\" of the config's optimizer"),
    **_refused("deepspeed.utils.timer", "set \"wall_clock_breakdown\": true in the config"),
    **_refused("deepspeed.utils.comms_logging", "there is no log of communication; use torch.profiler"),
    **_refused("deepspeed.utils.init_on_device", "build the model under deepspeed.zero.Init(), or torch.device('meta')"),
    **_refused("deepspeed.inference deepspeed.model_implementations", _INFERENCE),
    **_refused("deepspeed.module_inject deepspeed.runtime.tensor_parallel", _TENSORS),
    **_refused("deepspeed.moe", _EXPERTS),
    **_refused("deepspeed.monitor", "log engine.get_lr() and engine.get_global_grad_norm() in the training loop"),
    **_refused("deepspeed.ops.aio deepspeed.ops.op_builder deepspeed.ops.quantizer deepspeed.ops.fp_quantizer deepspeed.ops.gds "
               "deepspeed.ops.pin_memory deepspeed.ops.triton_ops",
               "zerorun's kernels are compiled ahead, and its own"),
    **_refused("deepspeed.ops.transformer deepspeed.ops.deepspeed4science deepspeed.ops.random_ltd", _LAYERS),
    **_refused("deepspeed.runtime.pipe.p2p deepspeed.runtime.pipe.schedule", _SCHEDULE_OF_PIPELINES),
    **_refused("deepspeed.profiling", "use torch.profiler, and torch.utils.flop_counter for floating-point operations"),
    **_refused("deepspeed.sequence deepspeed.runtime.sequence_parallel", _SEQUENCES),
    **_refused("deepspeed.runtime.bf16_optimizer deepspeed.runtime.fp16 deepspeed.runtime.checkpoint_engine deepspeed.runtime.comm "
               "deepspeed.compat deepspeed.ops.compile deepspeed.ops.adam.multi_tensor_apply deepspeed.ops.lion.multi_tensor_apply "
               "deepspeed.runtime.swap_tensor deepspeed.runtime.zero.linear deepspeed.runtime.zero.parameter_offload "
               "deepspeed.runtime.zero.partition_parameters deepspeed.runtime.zero.stage3 deepspeed.runtime.zero.stage_1_and_2 "
               "deepspeed.runtime.zero.utils deepspeed.runtime.zero.contiguous_memory_allocator deepspeed.runtime.zero.offload_states "
               "deepspeed.runtime.zero.partitioned_param_coordinator deepspeed.runtime.zero.partitioned_param_profiler "
               "deepspeed.utils.bwc deepspeed.utils.debug deepspeed.utils.exceptions deepspeed.utils.mixed_precision_linkage "
               "deepspeed.utils.numa deepspeed.utils.pin_memory deepspeed.utils.pin_memory_tracker deepspeed.utils.static_cache "
               "deepspeed.utils.types", _INTERNAL),
}


def remedy_of_module(module):
    """The remedy if the module, or one above it, is refused; else None."""
    while module and module not in REFUSED_MODULES:
        module = module.rpartition(".")[0]
    return REFUSED_MODULES.get(module)
