// Trainings on the recording device beside the same on a device without streams.
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
/// The host updates.
inline constexpr const char* kHostUpdate = R"(, "offload_optimizer": {"device": "cpu"})";
/// And at stage 3 it has the slices of parameters.
inline constexpr const char* kHostSlices =
    R"(, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"})";
/// All of that is in files of `folder`.
std::string in_files_of(const std::filesystem::path& folder);

struct Setting {
  int stage = 1;
  int ranks = 2;
  std::string precision = {};
  int accumulation = 1;
  bool overlap = true;
  int max_live = 600;  // less than the model has
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
  bool client = false;       // torch::optim::AdamW of the program in place of it
  std::string offload = {};  // the config's "offload_optimizer", with a comma before it
};

std::string config_of(const Setting& setting);

// What a run on several streams leaves behind, on rank 0.
struct Trained {
  std::vector<at::Tensor> parameters;
  double grad_norm = 0;
  double lr = 0;
  int64_t skipped = 0;
};

struct Program {
  int steps = 6;
  bool side_streams = false;            // forward or backward of a step run on another stream
  bool writes = false;                  // the program itself writes to parameters, on another stream
  bool two_backwards = false;           // before each step
  bool evaluates = false;               // between steps, on a stream that changes
  bool reads_raw = false;               // without an operator, behind each step: where one rank has all
  std::filesystem::path saves_to = {};  // a checkpoint behind each step
  int infinite_step = -1;               // in which rank 1 has gradients that are not finite
  std::function<void(Engine& engine)> before_evaluation = [](Engine&) {};
  std::function<void(int step, Engine& engine)> after_step = [](int, Engine&) {};
};

/// On a device without streams.
Trained run_plain(const Setting& setting, const Program& program);
/// One recording a rank.
Trained run_recorded(const Setting& setting, const Program& program, std::vector<Recording>& recordings);
/// Nothing was out of order.
void check_clean(const std::vector<Recording>& recordings);
void check_same(const Trained& a, const Trained& b);
/// Both ways: nothing is out of order, and the bits are the same.
void check_beside_plain(const Setting& setting, const Program& program);

}  // namespace zerorun::testing
