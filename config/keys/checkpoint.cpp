// Keys for checkpoints and the I/O of offloaded state (aio).
#include "config/keys/tables.h"

namespace zerorun::config::keys {

constexpr std::string_view every_rank = "every rank writes its own slices";
constexpr std::string_view writer_reason =
    "every rank already writes in the background, in blocks of 1 MiB that bypass the page cache";

static constexpr KeyFact checkpoint_rows[] = {
    section("checkpoint", "how checkpoints are saved"),
    choice(".tag_validation", "\"Warn\"", "Ignore Warn Fail",
           "what to do when ranks save a checkpoint under different tags")
        .in_any_case("Ignore Warn Fail")
        .no_effect("if ranks pass different tags, nothing is saved and every rank gets an error; a Python "
                   "program's ranks save under rank 0's tag instead, unless it is Fail"),
    boolean(".load_universal", "false", "load a checkpoint that was saved at another world size")
        .no_effect("every checkpoint can be loaded at any world size"),
    boolean(".use_node_local_storage", "false",
            "each host writes the files of its ranks to its own local folder")
        .filled_by(program),
    section("checkpoint.parallel_write", "which ranks write the checkpoint").no_effect(every_rank),
    boolean(".pipeline_stage", "false", "write pipeline stages in parallel"),
    boolean("checkpoint.checkpoint_serialization", "true", "write files in torch's zip format")
        .no_effect("checkpoint files have the safetensors format"),
    section("checkpoint.writer", "a faster checkpoint writer").or_null().no_effect(writer_reason),
    choice(".type", "\"FAST\"", "MOCK PYTHON FAST", "type of the writer"),
    boolean(".decoupled", "false", "write in the background"),
    integer(".io_buffer_size", "67108864", "size of the writer's buffer in bytes"),
    boolean(".io_buffer_double", "true", "use two buffers: one is written while the other is filled"),
    boolean(".show_statistics", "false", "print the write speed"),
    choice(".data_parallel", "", "REPLICA SOCKET MACHINE", "how data-parallel ranks share the writing")
        .or_null(),
    integer(".io_multiplier", "1", "number of concurrent requests"),
    section("zerorun.restart", "what ranks hold in memory for restarts (`zerorun --hold_every`)"),
    boolean(
        ".partner", "false",
        "on several hosts each rank also copies its generations into the memory of the next host, so that "
        "a restart goes on from memory after a host was lost"),
    object("datastates_ckpt", "settings of the DataStates checkpoint engine")
        .or_null()
        .not_supported("checkpoints are written by ZeroRun itself"),
    object("nebula", "checkpoints in the Nebula cloud service")
        .switched_by("enabled")
        .not_supported("checkpoints are written by ZeroRun itself")
        .removed_from_deepspeed(),
    section("aio", "I/O settings for the files of offloaded state"),
    integer(".block_size", "1048576",
            "size of one I/O request in bytes; larger if a buffer would otherwise need more than queue_depth "
            "requests")
        .least(1),
    integer(".queue_depth", "8", "maximum number of concurrent I/O requests of a rank").least(1),
    integer(".intra_op_parallelism", "1", "number of I/O threads, used only if the kernel has no io_uring")
        .least(1),
    boolean(".single_submit", "false", "submit I/O requests one at a time")
        .no_effect("each request is submitted as soon as it is ready"),
    boolean(".overlap_events", "true", "submit requests while earlier ones are still running")
        .no_effect("requests are always submitted while earlier ones are still running"),
    boolean(".use_gds", "false", "read files directly into GPU memory (GPUDirect Storage)")
        .not_supported("files are read into host memory"),
    old_name(".thread_count", "aio.intra_op_parallelism"),
};

const std::span<const KeyFact> checkpoint = checkpoint_rows;

}  // namespace zerorun::config::keys
