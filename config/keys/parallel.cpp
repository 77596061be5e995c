// Keys for other kinds of parallelism, for compilation, and for autotuning.
#include "config/keys/tables.h"

namespace zerorun::config::keys {

static constexpr KeyFact parallel_rows[] = {
    section("pipeline", "settings of pipeline parallelism; the section has no on/off switch")
        .no_effect("layers are not divided among ranks"),
    integer(".stages", "", "number of pipeline stages").least(1).filled_by(fallback),
    text(".partition", "\"best\"", "how layers are partitioned"),
    boolean(".seed_layers", "false", "set the random seed before each layer is created"),
    integer(".activation_checkpoint_interval", "0", "number of layers between two activation checkpoints"),
    boolean(".pipe_partitioned", "true", "partition the activations that are sent between stages"),
    boolean(".grad_partitioned", "true", "partition the gradients that are sent between stages"),
    feature("hybrid_engine", "inference during training")
        .not_supported("inference runs on the training engine itself, in eval mode"),
    enabled.refused(),
    integer(".max_out_tokens", "512", "maximum number of output tokens"),
    integer(".inference_tp_size", "1", "number of tensor-parallel ranks"),
    boolean(".release_inference_cache", "false", "free the memory of the inference cache"),
    boolean(".pin_parameters", "true", "keep parameters in page-locked memory"),
    integer(".tp_gather_partition_size", "8", "number of parameters gathered at a time"),
    boolean(".enable_cuda_graph", "false", "use CUDA graphs"),
    section("tensor_parallel", "tensor parallelism").not_supported("layers are not divided among ranks"),
    integer(".autotp_size", "0", "number of tensor-parallel ranks").least(0).refused(),
    text(".dtype", "\"torch.float16\"", "dtype of the partitioned layers"),
    boolean(".tp_overlap_comm", "false", "overlap communication with computation"),
    boolean(".vocab_parallel_lm_head", "false", "divide the output layer's vocabulary among ranks"),
    choice(".vocab_parallel_ce_backend", "\"torch\"", "torch liger",
           "kernels of the loss over a divided vocabulary"),
    object(".tensor_parallel", "more settings").or_null(),
    object(".tp", "more settings").or_null(),
    anything(".injection_policy_tuple", "layers to partition"),
    object(".partition_config", "how layers are partitioned").or_null(),
    text(".preset_model", "", "model with a predefined partition").or_null(),
    boolean(".keep_module_on_host", "false", "keep modules in host memory"),
    boolean(".replace_with_kernel_inject", "false", "use fused kernels"),
    boolean(".kernel_inject", "false", "use fused kernels"),
    object("expert_parallel", "expert parallelism")
        .or_null()
        .switched_by("enabled")
        .refused("ZeroRun has no expert parallelism"),
    integer("sequence_parallel_size", "1", "number of ranks that share a sequence")
        .least(1)
        .or_null()
        .refused("ZeroRun has no sequence parallelism"),
    integer("data_parallel_size", "", "number of data-parallel ranks")
        .least(1)
        .or_null()
        .no_effect("all ranks are data-parallel"),
    section("compile", "compilation of the training step")
        .switched_by("deepcompile")
        .not_supported("ZeroRun does not compile; LibTorch's operators run unchanged"),
    boolean(".deepcompile", "false", "compile forward and backward with their collectives"),
    boolean(".autoep_non_moe", "false", "compile all but the layers of expert parallelism"),
    boolean(".free_activation", "false", "free saved activations early"),
    integer(".free_activation_threshold", "10485760",
            "minimum size in bytes of an activation that is freed early"),
    boolean(".offload_activation", "false", "move saved activations to host memory"),
    boolean(".offload_activation_pin_memory", "true", "use page-locked memory for offloaded activations"),
    boolean(".offload_opt_states", "false", "move optimizer states to host memory"),
    boolean(".double_buffer", "true", "gather into one buffer while the other is in use"),
    boolean(".symmetric_memory", "false", "use symmetric memory"),
    boolean(".debug_log", "false", "print debug messages of the compiler"),
    boolean(".offload_parameters", "false", "move parameters to host memory"),
    boolean(".sync_before_reduce", "false", "synchronize before reductions"),
    boolean(".sync_after_reduce", "false", "synchronize after reductions"),
    boolean(".sync_before_allgather", "false", "synchronize before gathers"),
    boolean(".sync_after_allgather", "false", "synchronize after gathers"),
    boolean(".keep_int_input_tensors", "true", "keep integer input tensors"),
    boolean(".keep_all_input_tensors", "false", "keep all input tensors"),
    texts(".passes", "", "compiler passes to run").or_null(),
    feature("elasticity", "batch sizes that stay valid when the number of ranks changes")
        .not_supported("the world size of a run is fixed")
        .removed_from_deepspeed(),
    enabled.refused(),
    integer(".max_train_batch_size", "2000", "maximum batch size").least(1),
    integers(".micro_batch_sizes", "[2, 4, 6]", "micro-batch sizes to choose from").least(1),
    integer(".min_gpus", "1", "minimum number of ranks").least(1),
    integer(".max_gpus", "10000", "maximum number of ranks").least(1),
    integer(".num_gpus_per_node", "1", "number of ranks per node").least(1),
    integer(".model_parallel_size", "1", "number of tensor-parallel ranks").least(1),
    integer(".min_time", "0", "minimum number of minutes between two changes").least(0),
    boolean(".prefer_larger_batch", "true", "prefer the larger of two batch sizes"),
    boolean(".ignore_non_elastic_batch_info", "false", "allow batch sizes outside of this section"),
    number(".version", "0.2", "version of the algorithm"),
    feature("autotuning", "search for a faster configuration")
        .not_supported("ZeroRun runs one configuration"),
    enabled,
    boolean(".fast", "true", "try fewer configurations"),
    text(".results_dir", "\"autotuning_results\"", "folder for the results"),
    text(".exps_dir", "\"autotuning_exps\"", "folder for the trials"),
    boolean(".overwrite", "true", "overwrite earlier results"),
    integer(".start_profile_step", "3", "first step that is measured"),
    integer(".end_profile_step", "5", "last step that is measured"),
    text(".metric_path", "", "file for the metric").or_null(),
    text(".tuner_type", "\"gridsearch\"", "how configurations are selected"),
    integer(".tuner_early_stopping", "5", "number of trials without improvement after which the search ends"),
    integer(".tuner_num_trials", "50", "maximum number of trials"),
    object(".arg_mappings", "program argument for each configuration key").or_null(),
    integer(".max_train_batch_size", "", "maximum batch size").or_null(),
    integer(".min_train_batch_size", "1", "minimum batch size"),
    integer(".max_train_micro_batch_size_per_gpu", "1024", "maximum micro-batch size"),
    integer(".min_train_micro_batch_size_per_gpu", "1", "minimum micro-batch size"),
    integer(".num_tuning_micro_batch_sizes", "3", "number of micro-batch sizes to try"),
    integer(".mp_size", "1", "number of tensor-parallel ranks"),
    text(".metric", "\"throughput\"", "metric to optimize"),
    text(".model_info_path", "", "file with information about the model").or_null(),
    object(".model_info", "information about the model").or_null(),
};

const std::span<const KeyFact> parallel = parallel_rows;

}  // namespace zerorun::config::keys
