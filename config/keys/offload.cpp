// ZeRO keys for state that is kept in host memory or in files while it is not used.
#include "config/keys/tables.h"

namespace zerorun::keys {

static constexpr KeyFact rows[] = {
    boolean("zero_optimization.cpu_offload", "", "true is {device: cpu}, false {device: none}")
        .old_form_of("zero_optimization.offload_optimizer"),
    boolean("zero_optimization.cpu_offload_param", "", "true is {device: cpu}, false {device: none}")
        .old_form_of("zero_optimization.offload_param"),
    boolean("zero_optimization.cpu_offload_params", "", "true is {device: cpu}, false {device: none}")
        .old_form_of("zero_optimization.offload_param"),
    old_name("zero_optimization.cpu_offload_use_pin_memory",
             "zero_optimization.offload_optimizer.pin_memory"),
    section("zero_optimization.offload_param", "where parameters are kept between uses")
        .with_auto()
        .or_null()
        .switched_by("device")
        .advise("write an object such as {\"device\": \"cpu\"}"),
    choice(
        ".device", "\"none\"", "none cpu nvme",
        "where each rank's slices of parameters are kept between uses, at stage 3: cpu is the host's memory, "
        "where ranks on CPUs have them anyway; nvme is files; on GPUs beside offload_optimizer only")
        .or_null()
        .advise("write \"none\", \"cpu\" or \"nvme\"")
        .without_auto(),
    text(".nvme_path", "",
         "folder for the files, which have no names and go with the process; made where it is missing")
        .or_null()
        .without_auto(),
    integer(".buffer_count", "5",
            "buffers between files and memory, at least 3; each has room for the largest slice")
        .least(0),
    size(".buffer_size", "1e8", "elements of one such buffer")
        .no_effect("a buffer has room for the largest slice of a bucket, whatever its size"),
    size(".max_in_cpu", "1e9",
         "elements of slices that each rank keeps in memory beside the files: 0 for all in files"),
    boolean(".pin_memory", "true", "keep host memory page-locked")
        .no_effect("what the host keeps for a GPU is always page-locked, in exact sizes; ranks on CPUs have "
                   "no use for that"),
    section("zero_optimization.offload_optimizer", "where optimizer states are kept between uses")
        .with_auto()
        .or_null()
        .switched_by("device")
        .advise("write an object such as {\"device\": \"cpu\"}"),
    choice(".device", "\"none\"", "none cpu nvme",
           "where optimizer states and master weights are kept, from stage 1 on: cpu is the host's memory, "
           "where ranks on CPUs have them anyway; nvme is files; for ranks on GPUs the host updates them "
           "(but for Muon's)")
        .or_null()
        .advise("write \"none\", \"cpu\" or \"nvme\"")
        .without_auto(),
    text(".nvme_path", "",
         "folder for the files, which have no names and go with the process; made where it is missing")
        .or_null()
        .without_auto(),
    integer(".buffer_count", "4",
            "buffers between files and memory, at least 3; together a twentieth of the state, but a MiB each "
            "at least")
        .least(0),
    boolean(".pin_memory", "true", "keep host memory page-locked")
        .no_effect("what the host keeps for a GPU is always page-locked, in exact sizes; ranks on CPUs have "
                   "no use for that"),
    boolean(".pipeline_read", "false", "read ahead while the optimizer works")
        .no_effect("files are always read ahead"),
    boolean(".pipeline_write", "false", "write behind while the optimizer works")
        .no_effect("files are always written behind"),
    boolean(".fast_init", "false", "start quickly with NVMe")
        .no_effect(
            "at the start files get their room, and master weights are written while the model moves in"),
    number(".ratio", "1.0",
           "share of the optimizer states that is in files, in whole buckets, with nvme; the rest stays in "
           "memory; with cpu the host has all")
        .range_of(0, 1),
    boolean(".super_offload", "false", "a variant for CPUs joined to their GPU")
        .not_offered(
            "it updates before the norm is known and takes back what was wrong; updates here begin with it"),
    number(".cpuadam_cores_perc", "0.8", "share of cores for the optimizer")
        .range_of(0, 1)
        .no_effect("the update uses the threads that the rank has"),
    section("zero_optimization.leaf_module", "modules whose parameters are gathered together")
        .or_null()
        .no_effect("parameters are gathered by operators, whatever the modules"),
    texts(".classes", "", "chosen by class").or_null(),
    texts(".names", "", "chosen by name").or_null(),
    texts(".name_suffixes", "", "chosen by the end of their name").or_null(),
    section("zero_optimization.zenflow", "updates that lag behind, to hide offloading")
        .with_auto()
        .or_null()
        .refused("every update is applied in its own step"),
    number(".topk_ratio", "0.1", "share of columns that is updated at once").range_of(0, 1),
    choice(".select_strategy", "\"auto\"", "auto step epoch", "when those are chosen again"),
    integer(".select_interval", "", "how often those are chosen again").least(0),
    integer(".update_interval", "", "how often the others are updated").least(0),
    boolean(".overlap_step", "false", "update while the next step computes"),
    boolean(".offload", "false", "offload the states of the chosen columns"),
    number(".auto_ratio", "0.99", "threshold of the automatic choice").range_of(0, 1),
    integer(".full_warm_up_rounds", "0", "steps that update everything first"),
    number(".pt_reserved_cores_perc", "0.5", "share of cores kept for LibTorch").range_of(0, 1),
    integer(".steps_per_epoch", "", "steps of an epoch").or_null(),
};

const std::span<const KeyFact> offload = rows;

}  // namespace zerorun::keys
