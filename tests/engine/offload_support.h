// Trainings with state in files beside the same with all of it in memory.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/engine/collected_state.h"
#include "tests/engine/state_support.h"

namespace zerorun::testing {

/// A config for the tiny GPT-2. `precision`: R"("bf16": {"enabled": true},)"; `offload`: what offload_in()
/// says.
std::string tiny_config(const std::string& precision, int accumulation, double clipping, int stage,
                        const std::string& offload);

/// `section`: "offload_optimizer", or "offload_param" with all slices in files.
std::string offload_in(const std::string& section, const std::filesystem::path& folder);

/// Wide enough for slices of several chunks.
StateCase wide(StateCase how);

struct Trained {
  CollectedState state;
  std::vector<std::vector<float>> losses;  // by rank
};

/// Five steps. `behind_step`: called by each rank.
void train(const StateCase& how, int ranks, int stage, const std::string& precision, Trained& trained,
           bool shares_memory = false, const std::function<void(StateTraining&, int)>& behind_step = {});

void check_same_training(const Trained& a, const Trained& b);

/// In the middle of every MiB of what this process has open there without a name.
void flip_bits_in_files_of(const std::filesystem::path& folder);

}  // namespace zerorun::testing
