// Keys for batch sizes, gradient reduction and clipping, and what a run prints.
#include "config/keys/tables.h"

namespace zerorun::keys {

constexpr std::string_view batch_advice =
    "write a positive integer, or leave the key out if the other two batch sizes give it";

static constexpr KeyFact rows[] = {
    integer("train_batch_size", "",
            "samples of one optimizer step on all ranks together; by default what the other two give")
        .least(1)
        .or_null()
        .filled_by(fallback)
        .advise(batch_advice),
    integer("train_micro_batch_size_per_gpu", "", "samples of one forward and backward on one rank")
        .least(1)
        .or_null()
        .filled_by(program)
        .advise(batch_advice),
    integer("gradient_accumulation_steps", "", "micro-steps of one optimizer step")
        .least(1)
        .or_null()
        .filled_by(program)
        .advise(batch_advice),
    boolean(
        "managed_gradient_accumulation", "true",
        "the engine counts micro-steps; false: every step() updates, after as many backwards as the program "
        "likes"),
    number("gradient_clipping", "1.0",
           "largest norm of all gradients together; larger ones are scaled down to it, 0 turns this off")
        .least(0)
        .or_true()
        .filled_by(program)
        .advise("write the largest gradient norm, 0 for no clipping, or leave the key out for 1.0"),
    choice("communication_data_type", "", "fp32 fp16 bf16",
           "dtype in which gradients travel; by default that of training")
        .or_null()
        .in_any_case("fp32 fp16 bf16"),
    choice("seq_parallel_communication_data_type", "\"fp32\"", "fp32 fp16 bf16",
           "dtype of reductions among the ranks of one sequence")
        .in_any_case("fp32 fp16 bf16")
        .no_effect("no sequence is divided among ranks"),
    boolean("prescale_gradients", "false",
            "divide gradients by the number of ranks before they are summed, not after"),
    number("gradient_predivide_factor", "1.0", "the part of that division that comes before the sum")
        .range_of(1e-6, 1e6),
    choice("gradient_allreduce_op", "\"mean\"", "mean sum", "gradients are averaged or summed over ranks")
        .in_any_case("mean sum"),
    boolean("sparse_gradients", "false", "send embedding gradients as lists of their rows")
        .not_offered("gradients travel dense, in buckets"),
    boolean("disable_allgather", "false", "an option of old versions")
        .no_effect("updated parameters are always gathered"),
    boolean("fp32_allreduce", "", "an option of old versions")
        .replaced_by("write \"communication_data_type\": \"fp32\""),
    boolean("zero_allow_untested_optimizer", "false",
            "allow ZeRO with optimizers that DeepSpeed has not tried with it")
        .no_effect("no optimizer needs this permission here"),
    boolean("zero_force_ds_cpu_optimizer", "true",
            "with offload_optimizer, insist on an optimizer of DeepSpeed's own")
        .no_effect("every optimizer here runs where its shard is"),
    number("max_grad_norm", "", "an option of other programs").replaced_by("write gradient_clipping"),
    integer("steps_per_print", "", "optimizer steps from one progress line to the next")
        .least(1)
        .or_null()
        .advise(
            "write the number of steps between two lines, or leave the key out for the program's own choice"),
    boolean("wall_clock_breakdown", "false", "print where the time of a step goes"),
    boolean("memory_breakdown", "false", "log memory at points of a step")
        .not_offered("the engine tells its bytes by category when the program asks"),
    boolean("dump_state", "false", "print the configuration at start")
        .not_offered("`zerorun config show` prints the resolved configuration"),
    text("log_level", "", "how much is logged").or_null().not_offered("the program decides what it logs"),
    section("timers", "how throughput is measured")
        .not_offered("programs measure their throughput themselves"),
    section("timers.throughput", "the throughput timer"),
    boolean(".enabled", "true", "measure throughput"),
    boolean(".synchronized", "true", "wait for the device before reading the clock"),
    boolean("dataloader_drop_last", "false", "drop the last batch of a data set when it is not full")
        .no_effect("the program loads its data itself"),
    integer("vocabulary_size", "", "the model's vocabulary, to check how it is aligned")
        .or_null()
        .no_effect("nothing depends on the vocabulary"),
    boolean("graph_harvesting", "false", "record parts of a step as CUDA graphs")
        .not_offered("a step is not recorded as a graph"),
    boolean("use_data_before_expert_parallelism", "false", "order of ranks in a mixture of experts")
        .no_effect("experts are not divided among ranks"),
    integer("seed", "", "not read by DeepSpeed's engine either")
        .or_null()
        .no_effect("the program seeds its generators itself"),
    size("allgather_size", "", "an option of old versions")
        .replaced_by("write zero_optimization.allgather_bucket_size"),
};

const std::span<const KeyFact> run = rows;

}  // namespace zerorun::keys
