// ZeRO: keys for what is partitioned and how it is communicated.
#include "config/keys/tables.h"

namespace zerorun {
namespace {

using namespace keys;

constexpr std::string_view buckets_reason =
    "gradients always travel in contiguous buckets by reduce-scatter, parameters by all-gather";

constexpr KeyFact rows[] = {
    section("zero_optimization", "what ZeRO divides among the ranks, and how it travels")
        .or_false("{\"stage\": 0}")
        .advise("write an object: {\"stage\": 1} is what true was"),
    integer("zero_optimization.stage", "0",
            "what is divided: 0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters")
        .range_of(0, 3)
        .advise("write 0, 1, 2 or 3"),
    boolean("zero_optimization.contiguous_gradients", "true", "copy gradients into one buffer as they come")
        .filled_by(fallback)
        .no_effect(buckets_reason),
    boolean("zero_optimization.reduce_scatter", "true", "send each rank its part of the gradients only")
        .filled_by(fallback)
        .no_effect(buckets_reason),
    size("zero_optimization.reduce_bucket_size", "5e8",
         "gradients that travel together, at most, in elements")
        .least(1)
        .filled_by(model)
        .advise("write a number of elements, or leave the key out for 5e8"),
    boolean("zero_optimization.use_multi_rank_bucket_allreduce", "true",
            "one reduction for the buckets of several ranks")
        .filled_by(fallback)
        .no_effect(buckets_reason),
    boolean("zero_optimization.allgather_partitions", "true",
            "gather updated parameters instead of broadcasting them")
        .filled_by(fallback)
        .no_effect(buckets_reason),
    size("zero_optimization.allgather_bucket_size", "5e8",
         "updated parameters that travel together, at most, in elements")
        .least(1)
        .filled_by(fallback)
        .advise("write a number of elements, or leave the key out for 5e8"),
    boolean("zero_optimization.overlap_comm", "",
            "send gradients while backward goes on; null: at stage 3 only")
        .or_null()
        .filled_by(fallback),
    boolean("zero_optimization.load_from_fp32_weights", "true",
            "start master weights from the fp32 copies of a checkpoint")
        .filled_by(fallback)
        .no_effect("master weights are the checkpoint's, or its fp32 parameters, as exact as it has them"),
    boolean("zero_optimization.elastic_checkpoint", "false", "an option of old versions")
        .filled_by(fallback)
        .no_effect("it changed the checkpoints of old versions only"),
    size("zero_optimization.sub_group_size", "1e9",
         "elements of which the state is read from files at a time, at most, but a MiB of it at least; 0 for "
         "no such bound; without "
         "offload to nvme it changes nothing")
        .least(0)
        .filled_by(fallback)
        .advise("write a number of elements, or leave the key out"),
    boolean("zero_optimization.ignore_unused_parameters", "true",
            "false: an error for parameters without a gradient")
        .filled_by(fallback)
        .not_offered("a parameter without a gradient has a gradient of 0"),
    boolean("zero_optimization.legacy_stage1", "false", "an option of old versions")
        .filled_by(fallback)
        .no_effect("there is one stage 1"),
    boolean("zero_optimization.round_robin_gradients", "false", "divide gradients among ranks in turns")
        .filled_by(fallback)
        .no_effect("every rank owns an equal slice of every bucket"),
    integer("zero_optimization.zero_hpz_partition_size", "1", "ranks that share a second set of parameters")
        .least(0)
        .filled_by(fallback)
        .not_offered("parameters are divided among all ranks"),
    boolean("zero_optimization.zero_quantized_weights", "false", "gather parameters in 8 bits")
        .filled_by(fallback)
        .refused("parameters travel as they are"),
    boolean("zero_optimization.zero_quantized_nontrainable_weights", "false",
            "keep frozen parameters in 8 bits")
        .filled_by(fallback)
        .refused("frozen parameters stay as they are"),
    boolean("zero_optimization.zero_quantized_gradients", "false", "reduce gradients in 4 bits")
        .filled_by(fallback)
        .refused("gradients travel as they are"),
    object("zero_optimization.zeropp_loco_param", "error feedback of quantized gradients")
        .or_null()
        .not_offered("gradients travel as they are"),
    integer("zero_optimization.mics_shard_size", "-1", "ranks among which parameters are divided")
        .filled_by(fallback)
        .not_offered("parameters are divided among all ranks"),
    boolean("zero_optimization.mics_hierarchical_params_gather", "false",
            "gather parameters inside nodes first")
        .filled_by(fallback)
        .no_effect("parameters are gathered among all ranks at once"),
    boolean("zero_optimization.memory_efficient_linear", "true",
            "keep fewer values for the backward of linear layers")
        .filled_by(fallback)
        .no_effect("saved parameters are gathered again for backward as it is"),
    boolean("zero_optimization.pipeline_loading_checkpoint", "false", "load a checkpoint rank by rank")
        .filled_by(fallback)
        .no_effect("each rank reads only what it keeps"),
    boolean("zero_optimization.override_module_apply", "true", "gather parameters inside Module.apply")
        .filled_by(fallback)
        .no_effect("operators gather the parameters they use wherever they run"),
    boolean("zero_optimization.log_trace_cache_warnings", "false", "log when the order of gathers changes")
        .filled_by(fallback)
        .not_offered("Engine::residency() counts such departures"),
    boolean("zero_optimization.enable_sanity_checks", "false", "check invariants")
        .filled_by(fallback)
        .no_effect("invariants are always checked"),
    boolean("zero_optimization.save_muon_momentum_buffer_in_memory", "false",
            "keep the momentum of Muon out of NVMe")
        .filled_by(fallback)
        .not_offered("momentum is kept where offload_optimizer says, as other states are"),
    size("zero_optimization.stage3_prefetch_bucket_size", "5e7",
         "parameters that are gathered ahead of their use, at most, in elements")
        .least(0)
        .also("prefetch_bucket_size")
        .filled_by(model)
        .advise("write a number of elements, 0 to fetch nothing ahead, or leave the key out for 5e7"),
    size("zero_optimization.stage3_param_persistence_threshold", "1e5",
         "parameters no larger than this many elements are never divided")
        .least(0)
        .also("param_persistence_threshold")
        .filled_by(model)
        .advise("write a number of elements, or leave the key out for 1e5"),
    size("zero_optimization.stage3_model_persistence_threshold", "9223372036854775807",
         "those together are no more than this many elements")
        .least(0)
        .also("model_persistence_threshold")
        .filled_by(fallback)
        .advise("write a number of elements, or leave the key out for no bound"),
    size("zero_optimization.stage3_max_live_parameters", "1e9",
         "parameters that are whole on a rank at a time, at most, in elements")
        .least(0)
        .also("max_live_parameters")
        .filled_by(fallback)
        .advise("write a number of elements, or leave the key out for 1e9"),
    size("zero_optimization.stage3_max_reuse_distance", "1e9",
         "a parameter that is used again within so many elements stays")
        .least(0)
        .also("max_reuse_distance")
        .filled_by(fallback)
        .advise("write a number of elements, or leave the key out for 1e9"),
    boolean("zero_optimization.stage3_gather_16bit_weights_on_model_save", "false",
            "gather whole parameters when the model is saved")
        .also("gather_16bit_weights_on_model_save")
        .filled_by(fallback)
        .no_effect("the program saves its weights itself, whole, inside a GatheredParameters scope"),
    integer("zero_optimization.stage3_module_granularity_threshold", "0", "gather small modules as one")
        .also("module_granularity_threshold")
        .filled_by(fallback)
        .least(0)
        .no_effect("parameters are gathered by operators, whatever the modules"),
    boolean("zero_optimization.stage3_use_all_reduce_for_fetch_params", "false",
            "gather parameters by all-reduce")
        .also("use_all_reduce_for_fetch_params")
        .filled_by(fallback)
        .no_effect(buckets_reason),
    boolean("zero_optimization.stage3_allgather_sequential", "false", "gather parameters one by one")
        .also("allgather_sequential")
        .filled_by(fallback)
        .no_effect(buckets_reason),
    boolean("zero_optimization.stage3_gather_fp16_weights_on_model_save", "",
            "old name of stage3_gather_16bit_weights_on_model_save")
        .filled_by(fallback)
        .old_name_of("zero_optimization.stage3_gather_16bit_weights_on_model_save"),
    boolean("zero_optimization.compute_grad_norm", "true",
            "false: leave the norm of the gradients out where clipping does not need it")
        .filled_by(fallback)
        .no_effect("the norm is always there: get_global_grad_norm()"),
};

}  // namespace

std::span<const KeyFact> zero_keys() {
  return rows;
}

}  // namespace zerorun
