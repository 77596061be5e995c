// ZeRO keys for what is partitioned and how it is communicated.
#include "config/keys/tables.h"

namespace zerorun::config::keys {

constexpr std::string_view buckets_reason =
    "gradients are always reduced in contiguous buckets by reduce-scatter, and parameters gathered by "
    "all-gather";

static constexpr KeyFact zero_rows[] = {
    section("zero_optimization", "what ZeRO partitions across ranks, and how it is communicated")
        .with_auto()
        .or_false("{\"stage\": 0}")
        .advise("write an object; true stood for {\"stage\": 1}"),
    integer(".stage", "0",
            "what is partitioned: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters")
        .range_of(0, 3)
        .advise("write 0, 1, 2 or 3")
        .without_auto(),
    boolean(".contiguous_gradients", "true", "copy gradients into a contiguous buffer as they are computed")
        .no_effect(buckets_reason),
    boolean(".reduce_scatter", "true", "use reduce-scatter instead of all-reduce for gradients")
        .no_effect(buckets_reason),
    size(".reduce_bucket_size", "5e8", "maximum number of elements that are reduced at a time")
        .least(1)
        .filled_by(model),
    boolean(".use_multi_rank_bucket_allreduce", "true",
            "reduce the buckets of several ranks in one all-reduce")
        .no_effect(buckets_reason),
    boolean(".allgather_partitions", "true", "gather updated parameters instead of broadcasting them")
        .no_effect(buckets_reason),
    size(".allgather_bucket_size", "5e8",
         "maximum number of elements of updated parameters that are gathered at a time")
        .least(1),
    boolean(".overlap_comm", "", "reduce gradients while backward runs; null: only at stage 3").or_null(),
    boolean(".load_from_fp32_weights", "true", "load master weights from the fp32 weights of a checkpoint")
        .no_effect("master weights are loaded at the highest precision that the checkpoint has"),
    boolean(".elastic_checkpoint", "false", "a key of old DeepSpeed versions")
        .no_effect("it affected only checkpoints of old DeepSpeed versions"),
    size(".sub_group_size", "1e9",
         "maximum number of elements whose optimizer states are read from files at a time, but at least 1 "
         "MiB; 0: no limit; no effect without offload to nvme"),
    boolean(".ignore_unused_parameters", "true", "false: an error for parameters without a gradient")
        .not_supported(
            "a parameter without a gradient is treated as if its gradient were 0; in a Python program "
            "step() is an error"),
    boolean(".legacy_stage1", "false", "a key of old DeepSpeed versions").no_effect("there is one stage 1"),
    boolean(".parameter_alignment", "false", "align parameters in flat buffers to 16 bytes")
        .no_effect("each parameter begins at a multiple of 64 bytes"),
    boolean(".round_robin_gradients", "false", "assign gradients to ranks in round-robin order")
        .no_effect("every rank owns an equal slice of every bucket"),
    integer(".zero_hpz_partition_size", "1",
            "number of neighbouring ranks, such as those of one host, that keep a second copy of partitioned "
            "parameters among them, so that only the first gather after an update is among all ranks; 0 or "
            "1: none")
        .least(0),
    boolean(".zero_quantized_weights", "false",
            "gather parameters in 8 bits, with a scale for each 256 elements; slices and master weights stay "
            "exact"),
    boolean(".zero_quantized_nontrainable_weights", "false", "keep frozen parameters in 8 bits")
        .refused("ZeroRun does not quantize parameters"),
    boolean(".zero_quantized_gradients", "false",
            "send gradients in 8 bits, with a scale for each 256 elements; the ranks of a group of "
            "zerorun.sum_group, such as those of a host, are summed exactly before that"),
    object(".zeropp_loco_param", "error feedback of quantized gradients")
        .or_null()
        .not_supported("errors of quantized gradients are not fed back")
        .removed_from_deepspeed()
        .without_auto(),
    integer(".mics_shard_size", "-1", "number of ranks across which parameters are partitioned")
        .not_supported("zerorun.mesh.replicate partitions them across fewer ranks")
        .removed_from_deepspeed(),
    boolean(".mics_hierarchical_params_gather", "false", "gather parameters within each node first")
        .no_effect("parameters are gathered from all ranks at once")
        .removed_from_deepspeed(),
    boolean(".memory_efficient_linear", "true", "save fewer tensors for the backward of linear layers")
        .no_effect("backward always gathers saved parameters again"),
    boolean(".pipeline_loading_checkpoint", "false", "load a checkpoint on one rank after the other")
        .no_effect("each rank reads only its own part"),
    boolean(".override_module_apply", "true", "gather parameters inside Module.apply")
        .no_effect("every operator gathers the parameters that it uses"),
    boolean(".log_trace_cache_warnings", "false", "log when the order of gathers changes")
        .not_supported("Engine::residency() counts these changes"),
    boolean(".enable_sanity_checks", "false", "check invariants").no_effect("invariants are always checked"),
    boolean(".save_muon_momentum_buffer_in_memory", "false",
            "keep the momentum of Muon in memory instead of on NVMe")
        .not_supported("momentum is stored where offload_optimizer says, like all optimizer states"),
    size(".stage3_prefetch_bucket_size", "5e7",
         "maximum number of elements of parameters that are gathered before they are used")
        .also("prefetch_bucket_size")
        .filled_by(model)
        .advise("write a number of elements, 0 for no prefetching, or leave the key out for 5e7"),
    size(".stage3_param_persistence_threshold", "1e5",
         "parameters of at most this many elements are not partitioned")
        .also("param_persistence_threshold")
        .filled_by(model),
    size(".stage3_model_persistence_threshold", "9223372036854775807",
         "maximum number of elements of all parameters that stay unpartitioned because of "
         "stage3_param_persistence_threshold")
        .also("model_persistence_threshold")
        .advise("write a number of elements, or leave the key out for no limit"),
    size(".stage3_max_live_parameters", "1e9", "maximum number of elements of gathered parameters on a rank")
        .also("max_live_parameters"),
    size(".stage3_max_reuse_distance", "1e9",
         "a gathered parameter stays gathered if it is used again within this many elements")
        .also("max_reuse_distance"),
    boolean(".stage3_gather_16bit_weights_on_model_save", "false",
            "gather the parameters when the model is saved")
        .also("gather_16bit_weights_on_model_save")
        .no_effect("save_16bit_model() always gathers the parameters, bucket by bucket"),
    integer(".stage3_module_granularity_threshold", "0", "gather small modules together")
        .also("module_granularity_threshold")
        .least(0)
        .no_effect("parameters are gathered for each operator, independently of modules"),
    boolean(".stage3_use_all_reduce_for_fetch_params", "false", "gather parameters by all-reduce")
        .also("use_all_reduce_for_fetch_params")
        .no_effect(buckets_reason),
    boolean(".stage3_allgather_sequential", "false", "gather one parameter at a time")
        .also("allgather_sequential")
        .no_effect(buckets_reason),
    old_name(".stage3_gather_fp16_weights_on_model_save",
             "zero_optimization.stage3_gather_16bit_weights_on_model_save"),
    boolean(".compute_grad_norm", "true",
            "false: do not compute the norm of the gradients unless clipping needs it")
        .no_effect("the norm is always computed: get_global_grad_norm()"),
};

const std::span<const KeyFact> zero = zero_rows;

}  // namespace zerorun::config::keys
