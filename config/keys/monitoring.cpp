// Keys for monitors, profilers and loggers of DeepSpeed.
#include "config/keys/tables.h"

namespace zerorun {
namespace {

using namespace keys;

constexpr KeyFact rows[] = {
    section("tensorboard", "what training measures, written to TensorBoard")
        .switched_by("enabled")
        .not_offered("no monitor is written; programs log what they measure"),
    boolean("tensorboard.enabled", "false", "write TensorBoard logs")
        .not_offered("no monitor is written; programs log what they measure"),
    text("tensorboard.output_path", "\"\"", "folder of the logs")
        .not_offered("no monitor is written; programs log what they measure"),
    text("tensorboard.job_name", "\"DeepSpeedJobName\"", "folder of this run")
        .not_offered("no monitor is written; programs log what they measure"),
    section("csv_monitor", "what training measures, written to CSV files")
        .switched_by("enabled")
        .not_offered("no monitor is written; programs log what they measure"),
    boolean("csv_monitor.enabled", "false", "write CSV files")
        .not_offered("no monitor is written; programs log what they measure"),
    text("csv_monitor.output_path", "\"\"", "folder of the files")
        .not_offered("no monitor is written; programs log what they measure"),
    text("csv_monitor.job_name", "\"DeepSpeedJobName\"", "folder of this run")
        .not_offered("no monitor is written; programs log what they measure"),
    section("wandb", "what training measures, written to Weights & Biases")
        .switched_by("enabled")
        .not_offered("no monitor is written; programs log what they measure"),
    boolean("wandb.enabled", "false", "write to Weights & Biases")
        .not_offered("no monitor is written; programs log what they measure"),
    text("wandb.group", "", "group of the run")
        .or_null()
        .not_offered("no monitor is written; programs log what they measure"),
    text("wandb.team", "", "team of the run")
        .or_null()
        .not_offered("no monitor is written; programs log what they measure"),
    text("wandb.project", "\"deepspeed\"", "project of the run")
        .not_offered("no monitor is written; programs log what they measure"),
    section("comet", "what training measures, written to Comet")
        .switched_by("enabled")
        .not_offered("no monitor is written; programs log what they measure"),
    boolean("comet.enabled", "false", "write to Comet")
        .not_offered("no monitor is written; programs log what they measure"),
    integer("comet.samples_log_interval", "100", "samples from one entry to the next")
        .not_offered("no monitor is written; programs log what they measure"),
    text("comet.project", "", "project of the run")
        .or_null()
        .not_offered("no monitor is written; programs log what they measure"),
    text("comet.workspace", "", "workspace of the run")
        .or_null()
        .not_offered("no monitor is written; programs log what they measure"),
    text("comet.api_key", "", "key of the account")
        .or_null()
        .not_offered("no monitor is written; programs log what they measure"),
    text("comet.experiment_name", "", "name of the run")
        .or_null()
        .not_offered("no monitor is written; programs log what they measure"),
    text("comet.experiment_key", "", "key of the run")
        .or_null()
        .not_offered("no monitor is written; programs log what they measure"),
    boolean("comet.online", "", "whether the run is online")
        .or_null()
        .not_offered("no monitor is written; programs log what they measure"),
    choice("comet.mode", "", "get create get_or_create", "whether the run begins or goes on")
        .or_null()
        .not_offered("no monitor is written; programs log what they measure"),
    section("flops_profiler", "counts the floating-point operations of a step")
        .switched_by("enabled")
        .not_offered("there is no profiler; wall_clock_breakdown tells where time goes"),
    boolean("flops_profiler.enabled", "false", "profile")
        .not_offered("there is no profiler; wall_clock_breakdown tells where time goes"),
    number("flops_profiler.recompute_fwd_factor", "0.0", "share of forward that is computed again")
        .not_offered("there is no profiler; wall_clock_breakdown tells where time goes"),
    integer("flops_profiler.profile_step", "1", "step that is profiled")
        .not_offered("there is no profiler; wall_clock_breakdown tells where time goes"),
    integer("flops_profiler.module_depth", "-1", "depth of the table, -1 for all")
        .not_offered("there is no profiler; wall_clock_breakdown tells where time goes"),
    integer("flops_profiler.top_modules", "1", "modules of the table")
        .not_offered("there is no profiler; wall_clock_breakdown tells where time goes"),
    boolean("flops_profiler.detailed", "true", "print each module")
        .not_offered("there is no profiler; wall_clock_breakdown tells where time goes"),
    text("flops_profiler.output_file", "", "file for the table")
        .or_null()
        .not_offered("there is no profiler; wall_clock_breakdown tells where time goes"),
    section("comms_logger", "log of collectives")
        .switched_by("enabled")
        .not_offered("programs read what was sent from their communicator"),
    boolean("comms_logger.enabled", "false", "log collectives")
        .not_offered("programs read what was sent from their communicator"),
    boolean("comms_logger.verbose", "false", "log each as it happens")
        .not_offered("programs read what was sent from their communicator"),
    boolean("comms_logger.prof_all", "true", "log all of them")
        .not_offered("programs read what was sent from their communicator"),
    boolean("comms_logger.debug", "false", "name the caller")
        .not_offered("programs read what was sent from their communicator"),
    texts("comms_logger.prof_ops", "[]", "those to log otherwise")
        .not_offered("programs read what was sent from their communicator"),
};

}  // namespace

std::span<const KeyFact> monitoring_keys() {
  return rows;
}

}  // namespace zerorun
