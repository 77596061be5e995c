// Other kinds of parallelism, compilation, and searches for a configuration.
#include "config/keys/tables.h"

namespace zerorun {
namespace {

using namespace keys;

constexpr KeyFact rows[] = {
    section("pipeline", "settings of pipeline parallelism; no switch of its own")
        .no_effect("layers are not divided among ranks"),
    integer("pipeline.stages", "", "parts of the pipeline")
        .least(1)
        .filled_by(fallback)
        .no_effect("layers are not divided among ranks"),
    text("pipeline.partition", "\"best\"", "how layers are divided")
        .no_effect("layers are not divided among ranks"),
    boolean("pipeline.seed_layers", "false", "seed each layer")
        .no_effect("layers are not divided among ranks"),
    integer("pipeline.activation_checkpoint_interval", "0", "layers from one checkpoint to the next")
        .no_effect("layers are not divided among ranks"),
    boolean("pipeline.pipe_partitioned", "true", "divide what travels between stages")
        .no_effect("layers are not divided among ranks"),
    boolean("pipeline.grad_partitioned", "true", "divide gradients between stages")
        .no_effect("layers are not divided among ranks"),
    section("hybrid_engine", "inference while training")
        .switched_by("enabled")
        .not_offered("inference runs on the training engine itself, in eval mode"),
    boolean("hybrid_engine.enabled", "false", "use it")
        .refused("inference runs on the training engine itself, in eval mode"),
    integer("hybrid_engine.max_out_tokens", "512", "longest text")
        .not_offered("inference runs on the training engine itself, in eval mode"),
    integer("hybrid_engine.inference_tp_size", "1", "ranks that share a layer")
        .not_offered("inference runs on the training engine itself, in eval mode"),
    boolean("hybrid_engine.release_inference_cache", "false", "free its memory")
        .not_offered("inference runs on the training engine itself, in eval mode"),
    boolean("hybrid_engine.pin_parameters", "true", "keep parameters page-locked")
        .not_offered("inference runs on the training engine itself, in eval mode"),
    integer("hybrid_engine.tp_gather_partition_size", "8", "parameters gathered at a time")
        .not_offered("inference runs on the training engine itself, in eval mode"),
    boolean("hybrid_engine.enable_cuda_graph", "false", "record a CUDA graph")
        .not_offered("inference runs on the training engine itself, in eval mode"),
    section("tensor_parallel", "layers divided among ranks")
        .not_offered("layers are not divided among ranks"),
    integer("tensor_parallel.autotp_size", "0", "ranks that share a layer")
        .least(0)
        .refused("layers are not divided among ranks"),
    text("tensor_parallel.dtype", "\"torch.float16\"", "dtype of divided layers")
        .not_offered("layers are not divided among ranks"),
    boolean("tensor_parallel.tp_overlap_comm", "false", "send while computing")
        .not_offered("layers are not divided among ranks"),
    object("tensor_parallel.tensor_parallel", "more settings")
        .or_null()
        .not_offered("layers are not divided among ranks"),
    object("tensor_parallel.tp", "more settings").or_null().not_offered("layers are not divided among ranks"),
    anything("tensor_parallel.injection_policy_tuple", "layers to divide")
        .not_offered("layers are not divided among ranks"),
    object("tensor_parallel.partition_config", "how layers are divided")
        .or_null()
        .not_offered("layers are not divided among ranks"),
    text("tensor_parallel.preset_model", "", "model whose layers are known")
        .or_null()
        .not_offered("layers are not divided among ranks"),
    boolean("tensor_parallel.keep_module_on_host", "false", "keep modules in host memory")
        .not_offered("layers are not divided among ranks"),
    boolean("tensor_parallel.replace_with_kernel_inject", "false", "use fused kernels")
        .not_offered("layers are not divided among ranks"),
    boolean("tensor_parallel.kernel_inject", "false", "use fused kernels")
        .not_offered("layers are not divided among ranks"),
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
    boolean("compile.deepcompile", "false", "compile forward and backward with their collectives")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean("compile.free_activation", "false", "free saved values early")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    integer("compile.free_activation_threshold", "10485760", "bytes from which they are")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean("compile.offload_activation", "false", "move saved values to host memory")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean("compile.offload_activation_pin_memory", "true", "into page-locked memory")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean("compile.offload_opt_states", "false", "move optimizer states to host memory")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean("compile.double_buffer", "true", "gather into one buffer while the other is used")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean("compile.symmetric_memory", "false", "use symmetric memory")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean("compile.debug_log", "false", "log what is compiled")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean("compile.offload_parameters", "false", "move parameters to host memory")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean("compile.sync_before_reduce", "false", "wait before reductions")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean("compile.sync_after_reduce", "false", "wait after reductions")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean("compile.sync_before_allgather", "false", "wait before gathers")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean("compile.sync_after_allgather", "false", "wait after gathers")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean("compile.keep_int_input_tensors", "true", "keep integer inputs")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    boolean("compile.keep_all_input_tensors", "false", "keep all inputs")
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    texts("compile.passes", "", "passes of the compiler")
        .or_null()
        .not_offered("operators run as LibTorch has them, nothing is compiled"),
    section("elasticity", "batch sizes for a number of ranks that changes")
        .switched_by("enabled")
        .not_offered("the number of ranks stays as it is in a run"),
    boolean("elasticity.enabled", "false", "use it").refused("the number of ranks stays as it is in a run"),
    integer("elasticity.max_train_batch_size", "2000", "largest batch")
        .least(1)
        .not_offered("the number of ranks stays as it is in a run"),
    integers("elasticity.micro_batch_sizes", "[2, 4, 6]", "micro-batches to choose from")
        .least(1)
        .not_offered("the number of ranks stays as it is in a run"),
    integer("elasticity.min_gpus", "1", "fewest ranks")
        .least(1)
        .not_offered("the number of ranks stays as it is in a run"),
    integer("elasticity.max_gpus", "10000", "most ranks")
        .least(1)
        .not_offered("the number of ranks stays as it is in a run"),
    integer("elasticity.num_gpus_per_node", "1", "ranks of a node")
        .least(1)
        .not_offered("the number of ranks stays as it is in a run"),
    integer("elasticity.model_parallel_size", "1", "ranks that share a layer")
        .least(1)
        .not_offered("the number of ranks stays as it is in a run"),
    integer("elasticity.min_time", "0", "minutes from one change to the next")
        .least(0)
        .not_offered("the number of ranks stays as it is in a run"),
    boolean("elasticity.prefer_larger_batch", "true", "choose the larger of two")
        .not_offered("the number of ranks stays as it is in a run"),
    boolean("elasticity.ignore_non_elastic_batch_info", "false", "let batch sizes stand beside this")
        .not_offered("the number of ranks stays as it is in a run"),
    number("elasticity.version", "0.2", "version of the algorithm")
        .not_offered("the number of ranks stays as it is in a run"),
    section("autotuning", "search for a faster configuration")
        .switched_by("enabled")
        .not_offered("zerorun runs one configuration"),
    boolean("autotuning.enabled", "false", "use it").not_offered("zerorun runs one configuration"),
    boolean("autotuning.fast", "true", "try few configurations")
        .not_offered("zerorun runs one configuration"),
    text("autotuning.results_dir", "\"autotuning_results\"", "folder of the results")
        .not_offered("zerorun runs one configuration"),
    text("autotuning.exps_dir", "\"autotuning_exps\"", "folder of the trials")
        .not_offered("zerorun runs one configuration"),
    boolean("autotuning.overwrite", "true", "replace earlier results")
        .not_offered("zerorun runs one configuration"),
    integer("autotuning.start_profile_step", "3", "first step that is measured")
        .not_offered("zerorun runs one configuration"),
    integer("autotuning.end_profile_step", "5", "last step that is measured")
        .not_offered("zerorun runs one configuration"),
    text("autotuning.metric_path", "", "file of the metric")
        .or_null()
        .not_offered("zerorun runs one configuration"),
    text("autotuning.tuner_type", "\"gridsearch\"", "how configurations are chosen")
        .not_offered("zerorun runs one configuration"),
    integer("autotuning.tuner_early_stopping", "5", "trials without gain before the end")
        .not_offered("zerorun runs one configuration"),
    integer("autotuning.tuner_num_trials", "50", "trials at most")
        .not_offered("zerorun runs one configuration"),
    object("autotuning.arg_mappings", "names of the program's arguments by key")
        .or_null()
        .not_offered("zerorun runs one configuration"),
    integer("autotuning.max_train_batch_size", "", "largest batch")
        .or_null()
        .not_offered("zerorun runs one configuration"),
    integer("autotuning.min_train_batch_size", "1", "smallest batch")
        .not_offered("zerorun runs one configuration"),
    integer("autotuning.max_train_micro_batch_size_per_gpu", "1024", "largest micro-batch")
        .not_offered("zerorun runs one configuration"),
    integer("autotuning.min_train_micro_batch_size_per_gpu", "1", "smallest micro-batch")
        .not_offered("zerorun runs one configuration"),
    integer("autotuning.num_tuning_micro_batch_sizes", "3", "micro-batches to try")
        .not_offered("zerorun runs one configuration"),
    integer("autotuning.mp_size", "1", "ranks that share a layer")
        .not_offered("zerorun runs one configuration"),
    text("autotuning.metric", "\"throughput\"", "what is measured")
        .not_offered("zerorun runs one configuration"),
    text("autotuning.model_info_path", "", "file of facts about the model")
        .or_null()
        .not_offered("zerorun runs one configuration"),
    object("autotuning.model_info", "facts about the model")
        .or_null()
        .not_offered("zerorun runs one configuration"),
};

}  // namespace

std::span<const KeyFact> parallel_keys() {
  return rows;
}

}  // namespace zerorun
