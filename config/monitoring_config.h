// What a run writes and prints about itself (docs/monitoring.md). Plain values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zerorun {

/// A monitor that writes files to `output_path`/`job_name`.
struct FileMonitorConfig {
  bool enabled = false;
  std::string output_path = {};  // empty: the folder in which the program runs
  std::string job_name = "DeepSpeedJobName";
};

/// Weights & Biases, for Python programs.
struct WandbConfig {
  bool enabled = false;
  std::optional<std::string> group = {};
  std::optional<std::string> team = {};
  std::string project = "deepspeed";
};

/// Comet, for Python programs. What is absent, Comet's package decides.
struct CometConfig {
  bool enabled = false;
  int64_t samples_log_interval = 100;  // samples from one value of a tag to the next, at least
  std::optional<std::string> project = {};
  std::optional<std::string> workspace = {};
  std::optional<std::string> api_key = {};
  std::optional<std::string> experiment_name = {};
  std::optional<std::string> experiment_key = {};
  std::optional<bool> online = {};
  std::optional<std::string> mode = {};
};

struct CommsLoggerConfig {
  bool enabled = false;
  bool verbose = false;                    // log each collective when it has ended
  bool prof_all = true;                    // record all kinds of collectives
  bool debug = false;                      // log what a collective is for, too
  std::vector<std::string> prof_ops = {};  // kinds to record if not all
};

struct FlopsProfilerConfig {
  bool enabled = false;
  int64_t profile_step = 1;   // after so many optimizer steps one is profiled
  bool detailed = true;       // print a row for each operator and module, not only the sums
  int64_t module_depth = -1;  // rows of modules down to this depth; the model's is 0; -1: all
  int64_t top_modules = 1;    // name so many modules with the most operations, for each depth
  std::string output_file = {};
};

/// A timeline of each rank in Perfetto's format.
struct TimelineConfig {
  bool enabled = false;
  std::string path = "timeline.tar";                 // the archive of all ranks' files
  std::optional<std::pair<int64_t, int64_t>> steps;  // the first and the last; else what the ring holds
  int64_t ring_mib = 4;                              // of each rank
};

/// The log of a run, from which runs are compared (docs/monitoring.md).
struct RunLogConfig {
  std::string path = {};  // a folder; empty: no log
  bool hashes = false;    // of each parameter's gradients and values in each step

  bool is_on() const { return !path.empty(); }
  bool has_hashes() const { return is_on() && hashes; }
};

struct MonitoringConfig {
  FileMonitorConfig csv;
  FileMonitorConfig tensorboard;
  WandbConfig wandb;
  CometConfig comet;
  CommsLoggerConfig comms;
  FlopsProfilerConfig flops;
  TimelineConfig timeline;
  RunLogConfig run_log;
  bool memory_breakdown = false;  // log the bytes of each category after each optimizer step
  bool dump_state = false;        // log all settings at initialize()

  bool writes_files() const { return csv.enabled || tensorboard.enabled || run_log.is_on(); }
};

}  // namespace zerorun
