// ZeRO keys for state that is kept in host memory or in files while it is not used.
#include "config/keys/tables.h"

namespace zerorun::config::keys {

static constexpr KeyFact offload_rows[] = {
    boolean("zero_optimization.cpu_offload", "", "true means {device: cpu}, false means {device: none}")
        .old_form_of("zero_optimization.offload_optimizer"),
    boolean("zero_optimization.cpu_offload_param", "", "true means {device: cpu}, false means {device: none}")
        .old_form_of("zero_optimization.offload_param"),
    boolean("zero_optimization.cpu_offload_params", "",
            "true means {device: cpu}, false means {device: none}")
        .old_form_of("zero_optimization.offload_param"),
    old_name("zero_optimization.cpu_offload_use_pin_memory",
             "zero_optimization.offload_optimizer.pin_memory"),
    section("zero_optimization.offload_param", "where parameters are stored between their uses")
        .with_auto()
        .or_null()
        .switched_by("device")
        .advise("write an object such as {\"device\": \"cpu\"}"),
    choice(".device", "\"none\"", "none cpu nvme",
           "where each rank stores its slices of the parameters between uses, at stage 3; cpu: in host "
           "memory (no difference for CPU ranks); nvme: in files; GPU ranks need offload_optimizer too")
        .or_null()
        .advise("write \"none\", \"cpu\" or \"nvme\"")
        .without_auto(),
    text(".nvme_path", "",
         "folder for the files, created if it is missing; the files have no names and disappear when the "
         "process ends")
        .or_null()
        .without_auto(),
    integer(".buffer_count", "5",
            "number of buffers for reading and writing files, at least 3; each holds the largest slice")
        .least(0),
    size(".buffer_size", "1e8", "number of elements per buffer")
        .no_effect("each buffer is as large as the largest slice of a bucket"),
    size(".max_in_cpu", "1e9",
         "number of elements that each rank keeps in memory instead of in files; 0: all are in files"),
    boolean(".pin_memory", "true", "use page-locked host memory")
        .no_effect("host memory for a GPU is always page-locked, without rounding up its size; CPU ranks do "
                   "not need it"),
    section("zero_optimization.offload_optimizer", "where optimizer states are stored")
        .with_auto()
        .or_null()
        .switched_by("device")
        .advise("write an object such as {\"device\": \"cpu\"}"),
    choice(".device", "\"none\"", "none cpu nvme",
           "where optimizer states and master weights are stored, from stage 1 on; cpu: in host memory (no "
           "difference for CPU ranks); nvme: in files; for GPU ranks the optimizer then runs on the CPU "
           "(except Muon)")
        .or_null()
        .advise("write \"none\", \"cpu\" or \"nvme\"")
        .without_auto(),
    text(".nvme_path", "",
         "folder for the files, created if it is missing; the files have no names and disappear when the "
         "process ends")
        .or_null()
        .without_auto(),
    integer(".buffer_count", "4",
            "number of buffers for reading and writing files, at least 3; together they hold a twentieth of "
            "the state, but each at least 1 MiB")
        .least(0),
    boolean(".pin_memory", "true", "use page-locked host memory")
        .no_effect("host memory for a GPU is always page-locked, without rounding up its size; CPU ranks do "
                   "not need it"),
    boolean(".pipeline_read", "false", "read the next states while the optimizer runs")
        .no_effect("files are always read ahead"),
    boolean(".pipeline_write", "false", "write the previous states while the optimizer runs")
        .no_effect("files are always written in the background"),
    boolean(".fast_init", "false", "start faster with NVMe")
        .no_effect("files are allocated at the start, and master weights are written while parameters are "
                   "partitioned"),
    number(".ratio", "1.0",
           "with nvme: fraction of the optimizer states that is stored in files, in whole buckets; the rest "
           "stays in memory; no effect with cpu")
        .range_of(0, 1),
    boolean(".super_offload", "false", "a variant for CPUs that are tightly coupled to their GPU")
        .not_supported("it updates before the gradient norm is known and rolls back if necessary; ZeroRun "
                       "updates when the norm is known"),
    number(".cpuadam_cores_perc", "0.8", "fraction of the cores for the optimizer")
        .range_of(0, 1)
        .no_effect("the update uses all threads of the rank"),
    section("zero_optimization.leaf_module",
            "modules of a Python program whose parameters are all gathered around their forward and "
            "backward; no effect in C++ programs, where operators gather what they use")
        .or_null(),
    texts(".classes", "", "selected by class").or_null(),
    texts(".names", "", "selected by name").or_null(),
    texts(".name_suffixes", "", "selected by the end of their name").or_null(),
    object("zero_optimization.zenflow", "delayed updates that hide the cost of offloading")
        .or_null()
        .without_auto()
        .used_if_present()
        .refused("every update is applied in its own step"),
};

const std::span<const KeyFact> offload = offload_rows;

}  // namespace zerorun::config::keys
