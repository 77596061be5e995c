// Keys for other kinds of parallelism, for compilation, and for autotuning.
#include "config/keys/tables.h"

namespace zerorun::keys {

static constexpr KeyFact rows[] = {
    section("pipeline", "settings of pipeline parallelism; no switch of its own")
        .no_effect("layers are not divided among ranks"),
    integer(".stages", "", "parts of the pipeline").least(1).filled_by(fallback),
    text(".partition", "\"best\"", "how layers are divided"),
    boolean(".seed_layers", "false", "seed each layer"),
    integer(".activation_checkpoint_interval", "0", "layers from one checkpoint to the next"),
    boolean(".pipe_partitioned", "true", "divide what travels between stages"),
    boolean(".grad_partitioned", "true", "divide gradients between stages"),
    feature("hybrid_engine", "inference while training")
        .not_offered("inference runs on the training engine itself, in eval mode"),
    boolean(".enabled", "false", "use it").refused(),
    integer(".max_out_tokens", "512", "longest text"),
    integer(".inference_tp_size", "1", "ranks that share a layer"),
    boolean(".release_inference_cache", "false", "free its memory"),
    boolean(".pin_parameters", "true", "keep parameters page-locked"),
    integer(".tp_gather_partition_size", "8", "parameters gathered at a time"),
    boolean(".enable_cuda_graph", "false", "record a CUDA graph"),
    section("tensor_parallel", "layers divided among ranks")
        .not_offered("layers are not divided among ranks"),
    integer(".autotp_size", "0", "ranks that share a layer").least(0).refused(),
    text(".dtype", "\"torch.float16\"", "dtype of divided layers"),
    boolean(".tp_overlap_comm", "false", "send while computing"),
    object(".tensor_parallel", "more settings").or_null(),
    object(".tp", "more settings").or_null(),
    anything(".injection_policy_tuple", "layers to divide"),
    object(".partition_config", "how layers are divided").or_null(),
    text(".preset_model", "", "model whose layers are known").or_null(),
    boolean(".keep_module_on_host", "false", "keep modules in host memory"),
    boolean(".replace_with_kernel_inject", "false", "use fused kernels"),
    boolean(".kernel_inject", "false", "use fused kernels"),
    object("expert_parallel", "experts divided among ranks")
        .or_null()
        .switched_by("enabled")
        .refused("experts are not divided among ranks"),
    integer("sequence_parallel_size", "1", "ranks that share a sequence")
        .least(1)
        .or_null()
        .refused("no sequence is divided among ranks"),
    integer("data_parallel_size", "", "ranks that have data of their own")
        .least(1)
        .or_null()
        .no_effect("every rank has data of its own"),
    section("compile", "compilation of the training step")
        .switched_by("deepcompile")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean(".deepcompile", "false", "compile forward and backward with their collectives"),
    boolean(".free_activation", "false", "free saved values early"),
    integer(".free_activation_threshold", "10485760", "bytes from which they are"),
    boolean(".offload_activation", "false", "move saved values to host memory"),
    boolean(".offload_activation_pin_memory", "true", "into page-locked memory"),
    boolean(".offload_opt_states", "false", "move optimizer states to host memory"),
    boolean(".double_buffer", "true", "gather into one buffer while the other is used"),
    boolean(".symmetric_memory", "false", "use symmetric memory"),
    boolean(".debug_log", "false", "log what is compiled"),
    boolean(".offload_parameters", "false", "move parameters to host memory"),
    boolean(".sync_before_reduce", "false", "wait before reductions"),
    boolean(".sync_after_reduce", "false", "wait after reductions"),
    boolean(".sync_before_allgather", "false", "wait before gathers"),
    boolean(".sync_after_allgather", "false", "wait after gathers"),
    boolean(".keep_int_input_tensors", "true", "keep integer inputs"),
    boolean(".keep_all_input_tensors", "false", "keep all inputs"),
    texts(".passes", "", "passes of the compiler").or_null(),
    feature("elasticity", "batch sizes for a number of ranks that changes")
        .not_offered("the number of ranks stays as it is in a run"),
    boolean(".enabled", "false", "use it").refused(),
    integer(".max_train_batch_size", "2000", "largest batch").least(1),
    integers(".micro_batch_sizes", "[2, 4, 6]", "micro-batches to choose from").least(1),
    integer(".min_gpus", "1", "fewest ranks").least(1),
    integer(".max_gpus", "10000", "most ranks").least(1),
    integer(".num_gpus_per_node", "1", "ranks of a node").least(1),
    integer(".model_parallel_size", "1", "ranks that share a layer").least(1),
    integer(".min_time", "0", "minutes from one change to the next").least(0),
    boolean(".prefer_larger_batch", "true", "choose the larger of two"),
    boolean(".ignore_non_elastic_batch_info", "false", "let batch sizes stand beside this"),
    number(".version", "0.2", "version of the algorithm"),
    feature("autotuning", "search for a faster configuration").not_offered("zerorun runs one configuration"),
    boolean(".enabled", "false", "use it"),
    boolean(".fast", "true", "try few configurations"),
    text(".results_dir", "\"autotuning_results\"", "folder of the results"),
    text(".exps_dir", "\"autotuning_exps\"", "folder of the trials"),
    boolean(".overwrite", "true", "replace earlier results"),
    integer(".start_profile_step", "3", "first step that is measured"),
    integer(".end_profile_step", "5", "last step that is measured"),
    text(".metric_path", "", "file of the metric").or_null(),
    text(".tuner_type", "\"gridsearch\"", "how configurations are chosen"),
    integer(".tuner_early_stopping", "5", "trials without gain before the end"),
    integer(".tuner_num_trials", "50", "trials at most"),
    object(".arg_mappings", "names of the program's arguments by key").or_null(),
    integer(".max_train_batch_size", "", "largest batch").or_null(),
    integer(".min_train_batch_size", "1", "smallest batch"),
    integer(".max_train_micro_batch_size_per_gpu", "1024", "largest micro-batch"),
    integer(".min_train_micro_batch_size_per_gpu", "1", "smallest micro-batch"),
    integer(".num_tuning_micro_batch_sizes", "3", "micro-batches to try"),
    integer(".mp_size", "1", "ranks that share a layer"),
    text(".metric", "\"throughput\"", "what is measured"),
    text(".model_info_path", "", "file of facts about the model").or_null(),
    object(".model_info", "facts about the model").or_null(),
};

const std::span<const KeyFact> parallel = rows;

}  // namespace zerorun::keys
