// What the log of a run says: run.json has a RunRecord, and each line of steps.jsonl a StepRecord, as JSON
// (docs/monitoring.md, "Run log"). Plain values and pure functions; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mesh_sizes.h"

namespace zerorun {

/// Readers refuse a later format.
inline constexpr int64_t kRunLogFormat = 1;
inline constexpr const char* kRunFile = "run.json";
inline constexpr const char* kStepsFile = "steps.jsonl";

/// A setting of the resolved configuration.
struct LoggedSetting {
  std::string key;    // "zero_optimization.stage"
  std::string value;  // as JSON
  std::string from;   // "line 7", "default"
};

struct LoggedParameter {
  std::string name;
  std::vector<int64_t> shape;  // of the whole parameter
  bool is_trained = true;
};

/// Bytes of model states before they are divided among ranks, as the formula of ZeRO counts them.
struct LoggedStates {
  double parameters = 0;                                    // of rank 0's part of the model
  double value = 0, gradient = 0, master = 0, moments = 0;  // bytes in memory for one parameter
};

struct RunRecord {
  std::string started = {};    // "2026-03-01T12:00:00Z"
  std::string device = {};     // "cpu"
  std::string transport = {};  // what carries collectives, in words
  std::string libtorch = {};   // "2.15.0"
  std::string processor = {};  // the instruction set that LibTorch's kernels use: "AVX512"
  std::string precision = {};  // "bf16": the dtype of the parameters
  std::string master = {};     // the dtype of master weights
  std::string optimizer = {};  // "AdamW"
  uint64_t seed = 0;           // of LibTorch's default generator of rank 0, at initialize()
  int world_size = 1;
  MeshSizes mesh = {};
  int64_t micro_batch = 1;
  int64_t accumulation = 1;
  bool sums_micro_steps = false;  // whether gradients are summed over ranks in each micro-step
  bool has_hashes = false;
  std::optional<LoggedStates> states = {};
  std::string timeline = {};                     // the absolute path of its archive; empty: none is recorded
  std::vector<std::string> hosts = {};           // each once
  std::vector<LoggedSetting> settings = {};      // in the order of the key table
  std::vector<LoggedParameter> parameters = {};  // trained ones first, each in the model's order
};

/// A hash of each parameter, in the order of RunRecord::parameters: 16 hexadecimal digits each.
using HashText = std::string;

struct StepRecord {
  int64_t step = 0;                 // optimizer steps so far, with this one
  bool is_start = false;            // of the values before the next step; only `values` has something
  std::optional<double> loss = {};  // mean of `losses`
  std::vector<std::optional<double>> losses = {};  // of each data rank: the mean of its micro-steps
  double gradient_norm = 0;
  double lr = 0;  // of the first parameter group
  std::optional<double> loss_scale = {};
  bool is_skipped = false;
  int64_t samples = 0;                          // of all ranks and steps
  std::optional<int64_t> tokens = {};           // of all ranks in this step; absent: the program does not say
  double seconds = 0;                           // since the step before ended
  std::map<std::string, int64_t> bytes = {};    // of rank 0, by category
  std::map<std::string, double> elements = {};  // that rank 0 has sent since then, by kind
  /// Trained parameters, by their place, whose values something else than the optimizer has changed since the
  /// update before.
  std::vector<int64_t> written = {};
  HashText gradients = {};  // of trained parameters; empty: not hashed
  HashText values = {};     // of trained parameters, with is_start of all; likewise
};

/// What happened to a run beside its steps.
enum class RunEventKind {
  began,   // an engine was made
  ended,   // it was released
  failed,  // an exception released it, or the launcher saw a rank fail or a signal
};

struct RunEvent {
  int64_t step = 0;  // optimizer steps until then
  RunEventKind kind = RunEventKind::began;
  std::string time = {};  // "2026-03-01T12:00:00Z"
  std::string text = {};  // "2 ranks on worker-0", "rank 1 killed by signal 9 (SIGKILL)"
};

std::string to_json(const RunRecord& run);
/// With a newline at the end and no other.
std::string to_line(const StepRecord& step);
std::string to_line(const RunEvent& event);
/// "2026-03-01T12:00:00Z"
std::string now_in_utc();
/// The next three throw UserError, whose text says what is wrong with `json`.
RunRecord run_of_json(std::string_view json);
StepRecord step_of_json(std::string_view json);
RunEvent event_of_json(std::string_view json);

/// The settings in what `zerorun config show` prints (config/check.h, show_settings()).
std::vector<LoggedSetting> settings_of(const std::string& shown);

}  // namespace zerorun
