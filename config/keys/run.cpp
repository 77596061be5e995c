// Keys for batch sizes, gradient reduction and clipping, and what a run prints.
#include "config/keys/tables.h"

namespace zerorun::config::keys {

constexpr std::string_view batch_advice =
    "write a positive integer, or leave the key out if it follows from the other two batch sizes";

static constexpr KeyFact run_rows[] = {
    integer("train_batch_size", "",
            "number of samples per optimizer step on all ranks together; by default it follows from the "
            "other two batch sizes")
        .least(1)
        .or_null()
        .filled_by(fallback)
        .advise(batch_advice),
    integer("train_micro_batch_size_per_gpu", "", "number of samples per forward and backward on one rank")
        .least(1)
        .or_null()
        .filled_by(program)
        .advise(batch_advice),
    integer("gradient_accumulation_steps", "", "number of micro-steps per optimizer step")
        .least(1)
        .or_null()
        .filled_by(program)
        .advise(batch_advice),
    boolean("managed_gradient_accumulation", "true",
            "the engine counts micro-steps; false: every step() is an optimizer step, after any number of "
            "backward()"),
    number("gradient_clipping", "1.0",
           "maximum norm of all gradients together; larger gradients are scaled down to it; 0: no clipping")
        .least(0)
        .or_true()
        .filled_by(program)
        .advise("write the largest gradient norm, 0 for no clipping, or leave the key out for 1.0"),
    choice("communication_data_type", "", "fp32 fp16 bf16",
           "dtype of gradients in collectives; by default the dtype of training")
        .or_null()
        .in_any_case("fp32 fp16 bf16"),
    choice("seq_parallel_communication_data_type", "\"fp32\"", "fp32 fp16 bf16",
           "dtype of reductions in sequence parallelism")
        .in_any_case("fp32 fp16 bf16")
        .no_effect("ZeroRun has no sequence parallelism"),
    boolean("prescale_gradients", "false",
            "divide gradients by the number of ranks before they are summed, not after"),
    number("gradient_predivide_factor", "1.0",
           "factor by which gradients are divided before they are summed; the rest of the division comes "
           "after the sum")
        .range_of(1e-6, 1e6),
    choice("gradient_allreduce_op", "\"mean\"", "mean sum", "gradients are averaged or summed over ranks")
        .in_any_case("mean sum"),
    boolean("sparse_gradients", "false", "send embedding gradients as lists of their rows")
        .not_supported("all gradients are reduced as dense buckets")
        .removed_from_deepspeed(),
    boolean("disable_allgather", "false", "a key of old DeepSpeed versions")
        .no_effect("updated parameters are always gathered"),
    boolean("fp32_allreduce", "", "a key of old DeepSpeed versions")
        .replaced_by("write \"communication_data_type\": \"fp32\""),
    boolean("zero_allow_untested_optimizer", "false",
            "in Python programs, allow element-wise optimizers that the engine has no kernels for"),
    boolean("zero_force_ds_cpu_optimizer", "true",
            "with offload_optimizer, require DeepSpeed's own CPU optimizer")
        .no_effect("every optimizer runs on the device that stores its shard"),
    boolean("disable_python_gc", "false",
            "switch Python's automatic garbage collection off until engine.destroy(); programs collect by "
            "engine.collect_python_gc()"),
    number("max_grad_norm", "", "a key of other programs").replaced_by("write gradient_clipping"),
    integer("steps_per_print", "", "number of optimizer steps between two progress lines")
        .least(1)
        .or_null()
        .advise(
            "write the number of steps between two lines, or leave the key out for the program's own choice"),
    boolean("wall_clock_breakdown", "false", "print where the time of a step is spent"),
    boolean("memory_breakdown", "false", "log the memory of rank 0 by category after each optimizer step"),
    boolean("dump_state", "false", "log all settings at initialize()"),
    text("log_level", "", "how much is logged").or_null().not_supported("the program decides what it logs"),
    section("timers", "how throughput is measured")
        .not_supported("programs measure their throughput themselves"),
    section("timers.throughput", "the throughput timer"),
    boolean(".enabled", "true", "measure throughput"),
    boolean(".synchronized", "true", "wait for the device before reading the clock"),
    boolean("dataloader_drop_last", "false", "drop the last batch of a dataset if it is incomplete")
        .no_effect("the program loads its data itself"),
    integer("vocabulary_size", "", "size of the model's vocabulary, to check its alignment")
        .or_null()
        .no_effect("nothing depends on the vocabulary"),
    boolean("graph_harvesting", "false", "record parts of a step as CUDA graphs")
        .not_supported("ZeroRun does not use CUDA graphs"),
    boolean("use_data_before_expert_parallelism", "false", "order of ranks in a mixture of experts")
        .no_effect("ZeroRun has no expert parallelism"),
    integer("seed", "", "not read by DeepSpeed's engine either")
        .or_null()
        .no_effect("the program seeds its generators itself"),
    size("allgather_size", "", "a key of old DeepSpeed versions")
        .replaced_by("write zero_optimization.allgather_bucket_size"),
};

const std::span<const KeyFact> run = run_rows;

}  // namespace zerorun::config::keys
