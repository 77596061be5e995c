// Trainings on the recording device, compared with the same trainings on a device without streams.
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

// For Setting::offload.
/// The host updates the parameters.
inline constexpr const char* kHostUpdate = R"(, "offload_optimizer": {"device": "cpu"})";
/// The host updates the parameters and, at stage 3, stores their slices.
inline constexpr const char* kHostSlices =
    R"(, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"})";
/// As kHostSlices, with that state in files of `folder`.
std::string in_files_of(const std::filesystem::path& folder);

struct Setting {
  int stage = 1;
  int ranks = 2;
  std::string precision = {};
  int accumulation = 1;
  bool overlap = true;
  int max_live = 600;  // fewer elements than the model has
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
  bool client = false;       // the program's torch::optim::AdamW in place of it
  std::string offload = {};  // the config's offload sections, with a comma before them
};

std::string config_of(const Setting& setting);

// Results of a run on several streams, from rank 0.
struct Trained {
  std::vector<at::Tensor> parameters;
  double grad_norm = 0;
  double lr = 0;
  int64_t skipped = 0;
};

struct Program {
  int steps = 6;
  bool side_streams = false;   // forward, backward or both run on another stream in each step
  bool writes = false;         // the program itself writes to parameters, on another stream
  bool two_backwards = false;  // two in each micro-step
  bool evaluates = false;      // after each step, in every other step on two streams
  bool reads_raw = false;  // without an operator, after each step; for stages where each rank has all values
  std::filesystem::path saves_to = {};  // a checkpoint after each step
  int infinite_step = -1;               // the step in which rank 1's gradients are not finite
  std::function<void(Engine& engine)> before_evaluation = [](Engine&) {};
  std::function<void(int step, Engine& engine)> after_step = [](int, Engine&) {};
};

/// Trains on a device without streams.
Trained run_plain(const Setting& setting, const Program& program);
/// Trains with one recording per rank.
Trained run_recorded(const Setting& setting, const Program& program, std::vector<Recording>& recordings);
/// CHECKs that no recording has a violation.
void check_clean(const std::vector<Recording>& recordings);
void check_same(const Trained& a, const Trained& b);
/// CHECKs that the recorded run has no violations and gives the same bits as the plain run.
void check_beside_plain(const Setting& setting, const Program& program);

}  // namespace zerorun::testing
