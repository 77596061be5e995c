// Trains on the recording device, to compare with the same training on a device without streams.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/engine/net.h"
#include "tests/support/recording_device.h"

namespace zerorun::testing {

inline const std::string kFp32;
inline const std::string kBf16 = R"("bf16": {"enabled": true},)";
inline const std::string kFp16 =
    R"("fp16": {"enabled": true, "initial_scale_power": 12, "loss_scale_window": 2, "hysteresis": 1},)";
inline const std::string kPrecisions[] = {kFp32, kBf16, kFp16};

// Values of Setting::offload.
/// The optimizer state is in host memory, and the host runs the update.
inline constexpr const char* kHostUpdate = R"(, "offload_optimizer": {"device": "cpu"})";
/// Like kHostUpdate. At stage 3 the parameters' slices are in host memory too.
inline constexpr const char* kHostSlices =
    R"(, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"})";
/// Like kHostSlices, but the state and the slices are in files of `folder`.
std::string in_files_of(const std::filesystem::path& folder);

struct Setting {
  int stage = 1;
  int ranks = 2;
  std::string precision = {};
  int accumulation = 1;
  bool overlap = true;
  int max_live = 600;  // in elements: fewer than the model has
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
  bool client = false;       // uses the program's torch::optim::AdamW instead of `optimizer`
  std::string offload = {};  // text to add to zero_optimization: a comma, then the offload sections
};

std::string config_of(const Setting& setting);

// Rank 0's results of a run.
struct StreamRun {
  std::vector<at::Tensor> parameters;
  double grad_norm = 0;
  double lr = 0;
  int64_t skipped = 0;
};

struct Program {
  int steps = 6;
  bool side_streams = false;      // in each step forward, backward or both run on another stream
  bool writes = false;            // the program writes to parameters on another stream
  bool two_backwards = false;     // runs two backwards in each micro-step
  int one_backward_from = 1000;   // the first step in which `two_backwards` has no effect
  bool halves_gradients = false;  // reads and writes all gradients before each optimizer step
  bool evaluates = false;         // evaluates after each step, every other time on two streams
  bool reads_raw = false;  // reads parameters by raw access after each step; needs all values on each rank
  std::filesystem::path saves_to = {};  // saves a checkpoint after each step
  int infinite_step = -1;               // the step in which rank 1's gradients are not finite; -1: none
  std::function<void(Engine& engine)> before_evaluation = [](Engine&) {};
  std::function<void(int step, Engine& engine)> after_step = [](int, Engine&) {};
};

/// Trains on a device without streams.
StreamRun run_plain(const Setting& setting, const Program& program);
/// Trains on recording devices, one for each rank.
StreamRun run_recorded(const Setting& setting, const Program& program, std::vector<Recording>& recordings);
/// CHECKs that no recording has a violation.
void check_clean(const std::vector<Recording>& recordings);
void check_same(const StreamRun& a, const StreamRun& b);
/// CHECKs that the run on recording devices has no violations and gives the bits of the plain run.
void check_beside_plain(const Setting& setting, const Program& program);

}  // namespace zerorun::testing
