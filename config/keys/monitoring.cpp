// Keys of DeepSpeed's monitors, profilers and loggers.
#include "config/keys/tables.h"

namespace zerorun::config::keys {

constexpr std::string_view no_monitors = "ZeroRun has no monitors; programs log their own metrics";

static constexpr KeyFact monitoring_rows[] = {
    feature("tensorboard", "training metrics, written to TensorBoard").not_supported(no_monitors),
    boolean(".enabled", "false", "write TensorBoard logs"),
    text(".output_path", "\"\"", "folder for the logs"),
    text(".job_name", "\"DeepSpeedJobName\"", "name of the folder of this run"),
    feature("csv_monitor", "training metrics, written to CSV files").not_supported(no_monitors),
    boolean(".enabled", "false", "write CSV files"),
    text(".output_path", "\"\"", "folder for the files"),
    text(".job_name", "\"DeepSpeedJobName\"", "name of the folder of this run"),
    feature("wandb", "training metrics, written to Weights & Biases").not_supported(no_monitors),
    boolean(".enabled", "false", "write to Weights & Biases"),
    text(".group", "", "group of the run").or_null(),
    text(".team", "", "team of the run").or_null(),
    text(".project", "\"deepspeed\"", "project of the run"),
    feature("comet", "training metrics, written to Comet").not_supported(no_monitors),
    boolean(".enabled", "false", "write to Comet"),
    integer(".samples_log_interval", "100", "number of samples between two log entries"),
    text(".project", "", "project of the run").or_null(),
    text(".workspace", "", "workspace of the run").or_null(),
    text(".api_key", "", "API key of the account").or_null(),
    text(".experiment_name", "", "name of the experiment").or_null(),
    text(".experiment_key", "", "key of the experiment").or_null(),
    boolean(".online", "", "log online instead of offline").or_null(),
    choice(".mode", "", "get create get_or_create", "create a new experiment or continue an existing one")
        .or_null(),
    feature("flops_profiler", "profiler that counts floating-point operations")
        .not_supported(
            "ZeroRun has no profiler; wall_clock_breakdown prints where the time of a step is spent"),
    boolean(".enabled", "false", "enable the profiler"),
    number(".recompute_fwd_factor", "0.0", "fraction of forward that is recomputed"),
    integer(".profile_step", "1", "step to profile"),
    integer(".module_depth", "-1", "depth of modules in the table; -1: all"),
    integer(".top_modules", "1", "number of modules in the table"),
    boolean(".detailed", "true", "print every module"),
    text(".output_file", "", "file for the table").or_null(),
    feature("comms_logger", "log of collective operations")
        .not_supported("programs can read the amount of communication from their communicator"),
    boolean(".enabled", "false", "log collectives"),
    boolean(".verbose", "false", "log each collective when it runs"),
    boolean(".prof_all", "true", "log all collectives"),
    boolean(".debug", "false", "log the caller too"),
    texts(".prof_ops", "[]", "collectives to log if prof_all is false"),
};

const std::span<const KeyFact> monitoring = monitoring_rows;

}  // namespace zerorun::config::keys
