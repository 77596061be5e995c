// Keys of DeepSpeed's monitors, profilers and loggers, and of the run log and the timeline (zerorun).
#include "config/keys/tables.h"

namespace zerorun::config::keys {

static constexpr KeyFact monitoring_rows[] = {
    feature("tensorboard", "training metrics, written to TensorBoard"),
    boolean(".enabled", "false", "write TensorBoard logs"),
    text(".output_path", "\"\"",
         "folder for the folders of runs; by default the one in which the program runs"),
    text(".job_name", "\"DeepSpeedJobName\"", "name of the folder of this run"),
    feature("csv_monitor", "training metrics, written to CSV files"),
    boolean(".enabled", "false", "write CSV files"),
    text(".output_path", "\"\"",
         "folder for the folders of runs; by default the one in which the program runs"),
    text(".job_name", "\"DeepSpeedJobName\"", "name of the folder of this run"),
    feature("wandb", "training metrics, written to Weights & Biases by Python programs"),
    boolean(".enabled", "false", "write to Weights & Biases"),
    text(".group", "", "group of the run").or_null(),
    text(".team", "", "team of the run").or_null(),
    text(".project", "\"deepspeed\"", "project of the run"),
    feature("comet", "training metrics, written to Comet by Python programs"),
    boolean(".enabled", "false", "write to Comet"),
    integer(".samples_log_interval", "100", "number of samples between two log entries").least(0),
    text(".project", "", "project of the run").or_null(),
    text(".workspace", "", "workspace of the run").or_null(),
    text(".api_key", "", "API key of the account").or_null().is_secret(),
    text(".experiment_name", "", "name of the experiment").or_null(),
    text(".experiment_key", "", "key of the experiment").or_null(),
    boolean(".online", "", "log online instead of offline").or_null(),
    choice(".mode", "", "get create get_or_create", "create a new experiment or continue an existing one")
        .or_null(),
    feature("flops_profiler", "counts the floating-point operations of one step on rank 0"),
    boolean(".enabled", "false", "enable the profiler"),
    number(".recompute_fwd_factor", "0.0", "fraction of forward that is recomputed")
        .no_effect("recomputed operations are counted"),
    integer(".profile_step", "1", "number of optimizer steps before the one to profile").least(0),
    integer(".module_depth", "-1", "depth down to which the table has modules; the model has 0; -1: all")
        .least(-1),
    integer(".top_modules", "1", "number of modules with the most operations to name, for each depth")
        .least(0),
    boolean(".detailed", "true", "print a row for each operator and module, not only the sums"),
    text(".output_file", "", "file for the table; by default it is logged").or_null(),
    section("zerorun.run_log", "log of each optimizer step, from which `zerorun diff` compares runs"),
    text(".path", "\"\"", "folder of the log, which rank 0 writes; empty: no log"),
    boolean(
        ".hashes", "false",
        "log hashes of each parameter's gradients and values too, which costs a pass over them in each step"),
    feature("comms_logger", "log of the collectives of rank 0"),
    boolean(".enabled", "false", "record collectives, and log a summary at the end"),
    boolean(".verbose", "false", "log each collective when it has ended"),
    boolean(".prof_all", "true", "record all kinds of collectives"),
    boolean(".debug", "false", "with verbose, log what a collective is for, too"),
    texts(".prof_ops", "[]", "kinds of collectives to record if prof_all is false, such as \"all_reduce\""),
    feature("zerorun.timeline", "a timeline of each rank in Perfetto's format (docs/monitoring.md)"),
    boolean(".enabled", "false", "record a timeline"),
    text(".path", "\"timeline.tar\"", "the archive with the timelines of all ranks"),
    numbers(".steps", "",
            "the first and the last optimizer step of the timeline, from 1; default: what the ring holds "
            "when the run ends")
        .of_length(2)
        .or_null(),
    integer(".ring_mib", "4", "memory of each rank for events, in MiB; the newest replace the oldest")
        .range_of(1, 1024),
};

const std::span<const KeyFact> monitoring = monitoring_rows;

}  // namespace zerorun::config::keys
