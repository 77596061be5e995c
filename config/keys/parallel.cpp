// Keys for the grid of ranks and other kinds of parallelism, for compilation, and for autotuning. The section
// zerorun begins here; its keys are in the files of their subjects.
#include "config/keys/tables.h"

namespace zerorun::config::keys {

static constexpr KeyFact parallel_rows[] = {
    section("zerorun", "settings that DeepSpeed does not have"),
    section("zerorun.mesh",
            "the ranks as a grid: gradients are averaged and states are sliced among data ranks only; tensor "
            "ranks split layers as the program's plan says; pipeline ranks divide the program's list of "
            "layers"),
    integer(".data", "", "number of data ranks; default: the ranks that the other sizes leave").least(1),
    integer(".tensor", "1", "number of tensor ranks").least(1),
    integer(".pipeline", "1", "number of pipeline ranks").least(1),
    integer(
        ".replicate", "1",
        "number of replicas (HSDP): states are sliced among the data ranks of each replica, such as those of "
        "one host, and the replicas sum their gradients once a step; for stages 1 to 3")
        .least(1),
    integer(
        "zerorun.sum_group", "",
        "sums over ranks on CPUs first add the ranks of each group of so many consecutive ranks, then the "
        "groups in order, so that runs with the same number have the same bits on one host and on several; "
        "default: all ranks in one order, on two levels (--comm two-level) the ranks of a host")
        .least(1),
    section("zerorun.restart", "what ranks keep to start again after a failure (docs/restarts.md)"),
    boolean(".partner", "false",
            "each rank also writes the generations that it holds in memory (zerorun --hold_every, several "
            "hosts) into the memory of the next host, so that they outlive the loss of a host"),
    section("pipeline", "pipeline parallelism, for programs that give a list of layers"),
    integer(".stages", "", "number of pipeline stages, as zerorun.mesh.pipeline")
        .least(1)
        .filled_by(fallback),
    choice(".partition", "\"best\"", "best parameters uniform",
           "how layers are divided among stages if the program does not say it: into equal bytes of "
           "parameters (best, parameters) or into equal numbers of layers"),
    choice(".reduce", "\"micro_batch\"", "micro_batch window",
           "when stages 2 and 3 reduce gradients: after each micro-batch, or at the end of the window with "
           "whole gradients in memory, as stage 1 does"),
    boolean(".seed_layers", "false", "set the random seed before each layer is created")
        .no_effect("initial values do not depend on how layers are divided"),
    integer(".activation_checkpoint_interval", "0",
            "recompute each stage's layers in groups of so many; 0: zerorun.recompute decides for each layer")
        .least(0),
    boolean(".use_reentrant", "true", "use the re-entrant form of PyTorch's checkpoint()")
        .no_effect("both forms give the same bits"),
    boolean(".pipe_partitioned", "true", "partition the activations that are sent between stages")
        .no_effect("each tensor rank sends its own"),
    boolean(".grad_partitioned", "true", "partition the gradients that are sent between stages")
        .no_effect("each tensor rank sends its own"),
    object("hybrid_engine", "inference during training")
        .switched_by("enabled")
        .refused("inference runs on the training engine itself, in eval mode"),
    section("tensor_parallel", "tensor parallelism"),
    integer(".autotp_size", "0",
            "number of tensor ranks, as zerorun.mesh.tensor; they split layers as the program's plan says; 0 "
            "or 1: none")
        .least(0),
    text(".dtype", "\"torch.float16\"", "dtype of the partitioned layers")
        .no_effect("parameters have the dtype that bf16 or fp16 gives"),
    boolean(".tp_overlap_comm", "false", "overlap communication with computation")
        .no_effect("a sum of activations is waited for where it is used"),
    boolean(".vocab_parallel_lm_head", "false", "divide the output layer's vocabulary among ranks")
        .no_effect("the plan's word for the output layer decides: colwise_gather_output gathers its results"),
    choice(".vocab_parallel_ce_backend", "\"torch\"", "torch liger",
           "kernels of the loss over a divided vocabulary")
        .no_effect("the program chooses its loss"),
    object(".tensor_parallel", "more settings")
        .or_null()
        .no_effect("DeepSpeed has no use for it in training"),
    object(".tp", "more settings").or_null().no_effect("DeepSpeed has no use for it in training"),
    anything(".injection_policy_tuple", "layers to partition")
        .no_effect("DeepSpeed has no use for it in training"),
    object(".partition_config", "how layers are partitioned")
        .or_null()
        .refused("give the plan to initialize() (tensor_plan)"),
    text(".preset_model", "", "model with a predefined partition")
        .or_null()
        .refused("give the plan to initialize() (tensor_plan)"),
    boolean(".keep_module_on_host", "false", "keep modules in host memory")
        .no_effect("DeferredInit builds models without memory"),
    boolean(".replace_with_kernel_inject", "false", "use fused kernels")
        .no_effect("modules stay as they are"),
    boolean(".kernel_inject", "false", "use fused kernels").no_effect("modules stay as they are"),
    object("expert_parallel", "expert parallelism")
        .or_null()
        .switched_by("enabled")
        .at_any_depth()
        .refused("ZeroRun has no expert parallelism"),
    integer("sequence_parallel_size", "1", "number of ranks that share a sequence")
        .least(1)
        .or_null()
        .refused("ZeroRun has no sequence parallelism"),
    integer("data_parallel_size", "", "number of data-parallel ranks")
        .least(1)
        .or_null()
        .no_effect("it follows from the number of ranks (zerorun.mesh)"),
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
    object("elasticity", "batch sizes that stay valid when the number of ranks changes")
        .switched_by("enabled")
        .refused("the world size of a run is fixed")
        .removed_from_deepspeed(),
    object("autotuning", "search for a faster configuration")
        .switched_by("enabled")
        .not_supported("ZeroRun runs one configuration"),
};

const std::span<const KeyFact> parallel = parallel_rows;

}  // namespace zerorun::config::keys
