// ZeRO keys for what is partitioned and how it is communicated.
#include "config/keys/tables.h"

namespace zerorun::keys {

constexpr std::string_view buckets_reason =
    "gradients always travel in contiguous buckets by reduce-scatter, parameters by all-gather";

static constexpr KeyFact rows[] = {
    section("zero_optimization", "what ZeRO divides among the ranks, and how it travels")
        .with_auto()
        .or_false("{\"stage\": 0}")
        .advise("write an object: {\"stage\": 1} is what true was"),
    integer(".stage", "0",
            "what is divided: 0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters")
        .range_of(0, 3)
        .advise("write 0, 1, 2 or 3")
        .without_auto(),
    boolean(".contiguous_gradients", "true", "copy gradients into one buffer as they come")
        .no_effect(buckets_reason),
    boolean(".reduce_scatter", "true", "send each rank its part of the gradients only")
        .no_effect(buckets_reason),
    size(".reduce_bucket_size", "5e8", "gradients that travel together, at most, in elements")
        .least(1)
        .filled_by(model),
    boolean(".use_multi_rank_bucket_allreduce", "true", "one reduction for the buckets of several ranks")
        .no_effect(buckets_reason),
    boolean(".allgather_partitions", "true", "gather updated parameters instead of broadcasting them")
        .no_effect(buckets_reason),
    size(".allgather_bucket_size", "5e8", "updated parameters that travel together, at most, in elements")
        .least(1),
    boolean(".overlap_comm", "", "send gradients while backward goes on; null: at stage 3 only").or_null(),
    boolean(".load_from_fp32_weights", "true", "start master weights from the fp32 copies of a checkpoint")
        .no_effect("master weights are the checkpoint's, or its fp32 parameters, as exact as it has them"),
    boolean(".elastic_checkpoint", "false", "an option of old versions")
        .no_effect("it changed the checkpoints of old versions only"),
    size(".sub_group_size", "1e9",
         "elements of which the state is read from files at a time, at most, but a MiB of it at least; 0 for "
         "no such bound; without offload to nvme it changes nothing"),
    boolean(".ignore_unused_parameters", "true", "false: an error for parameters without a gradient")
        .not_offered("a parameter without a gradient has a gradient of 0"),
    boolean(".legacy_stage1", "false", "an option of old versions").no_effect("there is one stage 1"),
    boolean(".round_robin_gradients", "false", "divide gradients among ranks in turns")
        .no_effect("every rank owns an equal slice of every bucket"),
    integer(".zero_hpz_partition_size", "1", "ranks that share a second set of parameters")
        .least(0)
        .not_offered("parameters are divided among all ranks"),
    boolean(".zero_quantized_weights", "false", "gather parameters in 8 bits")
        .refused("parameters travel as they are"),
    boolean(".zero_quantized_nontrainable_weights", "false", "keep frozen parameters in 8 bits")
        .refused("frozen parameters stay as they are"),
    boolean(".zero_quantized_gradients", "false", "reduce gradients in 4 bits")
        .refused("gradients travel as they are"),
    object(".zeropp_loco_param", "error feedback of quantized gradients")
        .or_null()
        .not_offered("gradients travel as they are")
        .without_auto(),
    integer(".mics_shard_size", "-1", "ranks among which parameters are divided")
        .not_offered("parameters are divided among all ranks (removed from DeepSpeed after 0.19.6)"),
    boolean(".mics_hierarchical_params_gather", "false", "gather parameters inside nodes first")
        .no_effect("parameters are gathered among all ranks at once (removed from DeepSpeed after 0.19.6)"),
    boolean(".memory_efficient_linear", "true", "keep fewer values for the backward of linear layers")
        .no_effect("saved parameters are gathered again for backward as it is"),
    boolean(".pipeline_loading_checkpoint", "false", "load a checkpoint rank by rank")
        .no_effect("each rank reads only what it keeps"),
    boolean(".override_module_apply", "true", "gather parameters inside Module.apply")
        .no_effect("operators gather the parameters they use wherever they run"),
    boolean(".log_trace_cache_warnings", "false", "log when the order of gathers changes")
        .not_offered("Engine::residency() counts such departures"),
    boolean(".enable_sanity_checks", "false", "check invariants").no_effect("invariants are always checked"),
    boolean(".save_muon_momentum_buffer_in_memory", "false", "keep the momentum of Muon out of NVMe")
        .not_offered("momentum is kept where offload_optimizer says, as other states are"),
    size(".stage3_prefetch_bucket_size", "5e7",
         "parameters that are gathered ahead of their use, at most, in elements")
        .also("prefetch_bucket_size")
        .filled_by(model)
        .advise("write a number of elements, 0 to fetch nothing ahead, or leave the key out for 5e7"),
    size(".stage3_param_persistence_threshold", "1e5",
         "parameters no larger than this many elements are never divided")
        .also("param_persistence_threshold")
        .filled_by(model),
    size(".stage3_model_persistence_threshold", "9223372036854775807",
         "those together are no more than this many elements")
        .also("model_persistence_threshold")
        .advise("write a number of elements, or leave the key out for no bound"),
    size(".stage3_max_live_parameters", "1e9",
         "parameters that are whole on a rank at a time, at most, in elements")
        .also("max_live_parameters"),
    size(".stage3_max_reuse_distance", "1e9", "a parameter that is used again within so many elements stays")
        .also("max_reuse_distance"),
    boolean(".stage3_gather_16bit_weights_on_model_save", "false",
            "gather whole parameters when the model is saved")
        .also("gather_16bit_weights_on_model_save")
        .no_effect("save_16bit_model() gathers bucket by bucket, whatever this key says"),
    integer(".stage3_module_granularity_threshold", "0", "gather small modules as one")
        .also("module_granularity_threshold")
        .least(0)
        .no_effect("parameters are gathered by operators, whatever the modules"),
    boolean(".stage3_use_all_reduce_for_fetch_params", "false", "gather parameters by all-reduce")
        .also("use_all_reduce_for_fetch_params")
        .no_effect(buckets_reason),
    boolean(".stage3_allgather_sequential", "false", "gather parameters one by one")
        .also("allgather_sequential")
        .no_effect(buckets_reason),
    old_name(".stage3_gather_fp16_weights_on_model_save",
             "zero_optimization.stage3_gather_16bit_weights_on_model_save"),
    boolean(".compute_grad_norm", "true",
            "false: leave the norm of the gradients out where clipping does not need it")
        .no_effect("the norm is always there: get_global_grad_norm()"),
};

const std::span<const KeyFact> zero = rows;

}  // namespace zerorun::keys
