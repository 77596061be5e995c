// Keys for what is kept of a forward until its backward: recomputed blocks, and where their inputs are.
#include "config/keys/tables.h"

namespace zerorun::config::keys {

static constexpr KeyFact activation_rows[] = {
    section(
        "zerorun.recompute",
        "which of the model's marked blocks are recomputed in backward instead of keeping their activations "
        "(docs/recomputation.md); without this section: all of them if the file has "
        "activation_checkpointing, else none"),
    integer(".every", "", "recompute one of so many blocks: 1 recomputes all, 2 every second one").least(1),
    texts(".patterns", "",
          "names of the blocks to recompute; * stands for one part of a name, as in \"h.*.mlp\""),
    text(".budget", "",
         "bytes that the blocks may keep for backward, such as \"8G\" or \"500M\": the first step is "
         "measured, and the blocks that save the most time per byte are kept from then on")
        .advise("write a number with K, M, G or T, which are powers of 1024"),
    text(".nvme_path", "",
         "folder for a file that keeps the inputs of recomputed blocks until backward, instead of memory; "
         "created if it is missing; the file has no name and disappears when the process ends"),
    section("activation_checkpointing",
            "recompute the model's marked blocks, and where their inputs are kept; the section has no on/off "
            "switch"),
    boolean(".partition_activations", "false",
            "each tensor rank keeps its part of a recomputed block's inputs; no effect without tensor ranks"),
    integer(
        ".number_checkpoints", "",
        "how many inputs the buffer of contiguous_memory_optimization has room for; without it as many as "
        "the first micro-batches keep at a time")
        .or_null()
        .least(1),
    boolean(".contiguous_memory_optimization", "false",
            "copy the inputs of recomputed blocks into one buffer, so that they leave no holes between other "
            "tensors; no effect on inputs in host memory or in a file"),
    boolean(".synchronize_checkpoint_boundary", "false",
            "synchronize with the device at checkpoint boundaries")
        .no_effect("the order of streams makes it unnecessary"),
    boolean(".profile", "false", "log the time that recomputations take"),
    boolean(".cpu_checkpointing", "false",
            "keep the inputs of recomputed blocks in host memory; no effect on CPU ranks"),
};

const std::span<const KeyFact> activations = activation_rows;

}  // namespace zerorun::config::keys
