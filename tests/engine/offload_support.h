// Trainings with state in files, compared with the same trainings with all state in memory.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/engine/collected_state.h"
#include "tests/engine/state_support.h"

namespace zerorun::testing {

/// A config for the tiny GPT-2. `precision`: R"("bf16": {"enabled": true},)"; `offload`: from offload_in().
std::string tiny_config(const std::string& precision, int accumulation, double clipping, int stage,
                        const std::string& offload);

/// The config section `section` with its state in files of `folder`: "offload_optimizer", or "offload_param"
/// with all slices in files.
std::string offload_in(const std::string& section, const std::filesystem::path& folder);

/// The same case with a model wide enough for slices of several chunks.
StateCase wide(StateCase how);

struct Trained {
  CollectedState state;
  std::vector<std::vector<float>> losses;  // by rank
};

/// Trains five steps. Each rank calls `behind_step` after each step.
void train(const StateCase& how, int ranks, int stage, const std::string& precision, Trained& trained,
           bool shares_memory = false, const std::function<void(StateTraining&, int)>& behind_step = {});

void check_same_training(const Trained& a, const Trained& b);

/// Flips a bit in the middle of every MiB of the unnamed files that this process has open in `folder`.
void flip_bits_in_files_of(const std::filesystem::path& folder);

}  // namespace zerorun::testing
