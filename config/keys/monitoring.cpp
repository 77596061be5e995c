// Keys of DeepSpeed's monitors, profilers and loggers.
#include "config/keys/tables.h"

namespace zerorun::keys {

static constexpr KeyFact rows[] = {
    feature("tensorboard", "what training measures, written to TensorBoard")
        .not_offered("no monitor is written; programs log what they measure"),
    boolean(".enabled", "false", "write TensorBoard logs"),
    text(".output_path", "\"\"", "folder of the logs"),
    text(".job_name", "\"DeepSpeedJobName\"", "folder of this run"),
    feature("csv_monitor", "what training measures, written to CSV files")
        .not_offered("no monitor is written; programs log what they measure"),
    boolean(".enabled", "false", "write CSV files"),
    text(".output_path", "\"\"", "folder of the files"),
    text(".job_name", "\"DeepSpeedJobName\"", "folder of this run"),
    feature("wandb", "what training measures, written to Weights & Biases")
        .not_offered("no monitor is written; programs log what they measure"),
    boolean(".enabled", "false", "write to Weights & Biases"),
    text(".group", "", "group of the run").or_null(),
    text(".team", "", "team of the run").or_null(),
    text(".project", "\"deepspeed\"", "project of the run"),
    feature("comet", "what training measures, written to Comet")
        .not_offered("no monitor is written; programs log what they measure"),
    boolean(".enabled", "false", "write to Comet"),
    integer(".samples_log_interval", "100", "samples from one entry to the next"),
    text(".project", "", "project of the run").or_null(),
    text(".workspace", "", "workspace of the run").or_null(),
    text(".api_key", "", "key of the account").or_null(),
    text(".experiment_name", "", "name of the run").or_null(),
    text(".experiment_key", "", "key of the run").or_null(),
    boolean(".online", "", "whether the run is online").or_null(),
    choice(".mode", "", "get create get_or_create", "whether the run begins or goes on").or_null(),
    feature("flops_profiler", "counts the floating-point operations of a step")
        .not_offered("there is no profiler; wall_clock_breakdown tells where time goes"),
    boolean(".enabled", "false", "profile"),
    number(".recompute_fwd_factor", "0.0", "share of forward that is computed again"),
    integer(".profile_step", "1", "step that is profiled"),
    integer(".module_depth", "-1", "depth of the table, -1 for all"),
    integer(".top_modules", "1", "modules of the table"),
    boolean(".detailed", "true", "print each module"),
    text(".output_file", "", "file for the table").or_null(),
    feature("comms_logger", "log of collectives")
        .not_offered("programs read what was sent from their communicator"),
    boolean(".enabled", "false", "log collectives"),
    boolean(".verbose", "false", "log each as it happens"),
    boolean(".prof_all", "true", "log all of them"),
    boolean(".debug", "false", "name the caller"),
    texts(".prof_ops", "[]", "those to log otherwise"),
};

const std::span<const KeyFact> monitoring = rows;

}  // namespace zerorun::keys
