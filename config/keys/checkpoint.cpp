// Keys for checkpoints, activation checkpointing and the I/O of offloaded state (aio).
#include "config/keys/tables.h"

namespace zerorun {
namespace {

using namespace keys;

constexpr std::string_view every_rank = "every rank writes its own slices";
constexpr std::string_view writer_reason =
    "every rank writes in the background, in blocks of 1 MiB around the page cache";
constexpr std::string_view engines_reason = "checkpoints are written by ZeroRun itself";

constexpr KeyFact rows[] = {
    section("checkpoint", "how training states are saved"),
    choice("checkpoint.tag_validation", "\"Warn\"", "Ignore Warn Fail",
           "what to do when ranks save under different names")
        .in_any_case("Ignore Warn Fail")
        .no_effect("where ranks name different tags nothing is saved, and all are told"),
    boolean("checkpoint.load_universal", "false", "load a checkpoint of any number of ranks")
        .no_effect("every checkpoint can be loaded by any number of ranks"),
    boolean("checkpoint.use_node_local_storage", "false", "each node writes to its own disk")
        .filled_by(program)
        .not_offered(
            "all ranks write to one folder; where they are on one host that is its own disk if you like"),
    section("checkpoint.parallel_write", "which ranks write").no_effect(every_rank),
    boolean("checkpoint.parallel_write.pipeline_stage", "false", "write pipeline stages side by side")
        .no_effect(every_rank),
    boolean("checkpoint.checkpoint_serialization", "true", "write zip files")
        .no_effect("files are in the safetensors format"),
    section("checkpoint.writer", "a faster writer").or_null().no_effect(writer_reason),
    choice("checkpoint.writer.type", "\"FAST\"", "MOCK PYTHON FAST", "which writer").no_effect(writer_reason),
    boolean("checkpoint.writer.decoupled", "false", "write in the background").no_effect(writer_reason),
    integer("checkpoint.writer.io_buffer_size", "67108864", "bytes of its buffer").no_effect(writer_reason),
    boolean("checkpoint.writer.io_buffer_double", "true", "write from one buffer while the other fills")
        .no_effect(writer_reason),
    boolean("checkpoint.writer.show_statistics", "false", "print its speed").no_effect(writer_reason),
    choice("checkpoint.writer.data_parallel", "", "REPLICA SOCKET MACHINE", "how ranks share the writing")
        .or_null()
        .no_effect(writer_reason),
    integer("checkpoint.writer.io_multiplier", "1", "requests at a time").no_effect(writer_reason),
    object("datastates_ckpt", "a checkpoint engine").or_null().not_offered(engines_reason),
    section("nebula", "checkpoints of a cloud service").switched_by("enabled").not_offered(engines_reason),
    boolean("nebula.enabled", "false", "use it").not_offered(engines_reason),
    boolean("nebula.enable_nebula_load", "true", "load from it").not_offered(engines_reason),
    text("nebula.nebula_load_path", "", "where to load from").or_null().not_offered(engines_reason),
    text("nebula.persistent_storage_path", "", "where to save").or_null().not_offered(engines_reason),
    integer("nebula.persistent_time_interval", "100", "seconds from one copy to the next")
        .not_offered(engines_reason),
    integer("nebula.num_of_version_in_retention", "2", "copies that are kept").not_offered(engines_reason),
    section("activation_checkpointing",
            "settings of DeepSpeed's checkpointing functions; no switch of its own")
        .no_effect("the model itself says what it computes again; ZeRO follows"),
    boolean("activation_checkpointing.partition_activations", "false", "divide saved values among ranks")
        .no_effect("the model itself says what it computes again; ZeRO follows"),
    integer("activation_checkpointing.number_checkpoints", "", "checkpoints that share one buffer")
        .or_null()
        .no_effect("the model itself says what it computes again; ZeRO follows"),
    boolean("activation_checkpointing.contiguous_memory_optimization", "false",
            "keep saved values in one buffer")
        .no_effect("the model itself says what it computes again; ZeRO follows"),
    boolean("activation_checkpointing.synchronize_checkpoint_boundary", "false",
            "wait for the device at boundaries")
        .no_effect("the model itself says what it computes again; ZeRO follows"),
    boolean("activation_checkpointing.profile", "false", "time forward and backward of checkpoints")
        .no_effect("the model itself says what it computes again; ZeRO follows"),
    boolean("activation_checkpointing.cpu_checkpointing", "false", "move saved values to host memory")
        .no_effect("the model itself says what it computes again; ZeRO follows"),
    section("aio", "how files of offloaded state are read and written"),
    integer("aio.block_size", "1048576",
            "bytes of one request; more where a buffer would take more than queue_depth requests")
        .least(1),
    integer("aio.queue_depth", "8", "requests under way on a rank, at most").least(1),
    integer("aio.intra_op_parallelism", "1",
            "threads that read and write where the kernel offers no io_uring")
        .least(1),
    boolean("aio.single_submit", "false", "submit requests one by one")
        .no_effect("a request is submitted as soon as there is one"),
    boolean("aio.overlap_events", "true", "submit while others complete")
        .no_effect("requests are always submitted while others are under way"),
    boolean("aio.use_gds", "false", "read straight into GPU memory")
        .not_offered("files are read into the host's memory"),
    integer("aio.thread_count", "", "old name of aio.intra_op_parallelism")
        .least(1)
        .old_name_of("aio.intra_op_parallelism"),
};

}  // namespace

std::span<const KeyFact> checkpoint_keys() {
  return rows;
}

}  // namespace zerorun
