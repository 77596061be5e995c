// Keys for checkpoints, activation checkpointing and the I/O of offloaded state (aio).
#include "config/keys/tables.h"

namespace zerorun::keys {

constexpr std::string_view every_rank = "every rank writes its own slices";
constexpr std::string_view writer_reason =
    "every rank writes in the background, in blocks of 1 MiB around the page cache";

static constexpr KeyFact rows[] = {
    section("checkpoint", "how training states are saved"),
    choice(".tag_validation", "\"Warn\"", "Ignore Warn Fail",
           "what to do when ranks save under different names")
        .in_any_case("Ignore Warn Fail")
        .no_effect("where ranks name different tags nothing is saved, and all are told"),
    boolean(".load_universal", "false", "load a checkpoint of any number of ranks")
        .no_effect("every checkpoint can be loaded by any number of ranks"),
    boolean(".use_node_local_storage", "false",
            "each host writes the files of its ranks to a folder of its own")
        .filled_by(program),
    section("checkpoint.parallel_write", "which ranks write").no_effect(every_rank),
    boolean(".pipeline_stage", "false", "write pipeline stages side by side"),
    boolean("checkpoint.checkpoint_serialization", "true", "write zip files")
        .no_effect("files are in the safetensors format"),
    section("checkpoint.writer", "a faster writer").or_null().no_effect(writer_reason),
    choice(".type", "\"FAST\"", "MOCK PYTHON FAST", "which writer"),
    boolean(".decoupled", "false", "write in the background"),
    integer(".io_buffer_size", "67108864", "bytes of its buffer"),
    boolean(".io_buffer_double", "true", "write from one buffer while the other fills"),
    boolean(".show_statistics", "false", "print its speed"),
    choice(".data_parallel", "", "REPLICA SOCKET MACHINE", "how ranks share the writing").or_null(),
    integer(".io_multiplier", "1", "requests at a time"),
    object("datastates_ckpt", "a checkpoint engine")
        .or_null()
        .not_offered("checkpoints are written by ZeroRun itself"),
    feature("nebula", "checkpoints of a cloud service")
        .not_offered("checkpoints are written by ZeroRun itself (removed from DeepSpeed after 0.19.6)"),
    boolean(".enabled", "false", "use it"),
    boolean(".enable_nebula_load", "true", "load from it"),
    text(".nebula_load_path", "", "where to load from").or_null(),
    text(".persistent_storage_path", "", "where to save").or_null(),
    integer(".persistent_time_interval", "100", "seconds from one copy to the next"),
    integer(".num_of_version_in_retention", "2", "copies that are kept"),
    section("activation_checkpointing",
            "settings of DeepSpeed's checkpointing functions; no switch of its own")
        .no_effect("the model itself says what it computes again; ZeRO follows"),
    boolean(".partition_activations", "false", "divide saved values among ranks"),
    integer(".number_checkpoints", "", "checkpoints that share one buffer").or_null(),
    boolean(".contiguous_memory_optimization", "false", "keep saved values in one buffer"),
    boolean(".synchronize_checkpoint_boundary", "false", "wait for the device at boundaries"),
    boolean(".profile", "false", "time forward and backward of checkpoints"),
    boolean(".cpu_checkpointing", "false", "move saved values to host memory"),
    section("aio", "how files of offloaded state are read and written"),
    integer(".block_size", "1048576",
            "bytes of one request; more where a buffer would take more than queue_depth requests")
        .least(1),
    integer(".queue_depth", "8", "requests under way on a rank, at most").least(1),
    integer(".intra_op_parallelism", "1", "threads that read and write where the kernel offers no io_uring")
        .least(1),
    boolean(".single_submit", "false", "submit requests one by one")
        .no_effect("a request is submitted as soon as there is one"),
    boolean(".overlap_events", "true", "submit while others complete")
        .no_effect("requests are always submitted while others are under way"),
    boolean(".use_gds", "false", "read straight into GPU memory")
        .not_offered("files are read into the host's memory"),
    old_name(".thread_count", "aio.intra_op_parallelism"),
};

const std::span<const KeyFact> checkpoint = rows;

}  // namespace zerorun::keys
