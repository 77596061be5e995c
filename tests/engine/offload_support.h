// Trains with state in files, to compare with the same training with all state in memory.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/engine/collected_state.h"
#include "tests/engine/state_support.h"

namespace zerorun::testing {

/// A config for the tiny GPT-2. `precision` is a config section such as R"("bf16": {"enabled": true},)".
/// `offload` is the result of offload_in().
std::string tiny_config(const std::string& precision, int accumulation, double clipping, int stage,
                        const std::string& offload);

/// The text of the config section "offload_optimizer" or "offload_param", with its state in files of
/// `folder`. With "offload_param" all slices are in files.
std::string offload_in(const std::string& section, const std::filesystem::path& folder);

/// The same case with a model so wide that a slice has several chunks.
StateCase wide(StateCase how);

struct Trained {
  CollectedState state;
  std::vector<std::vector<float>> losses;  // by rank and step
};

/// Trains five steps. Each rank calls `behind_step` after each step, with the step's number.
void train(const StateCase& how, int ranks, int stage, const std::string& precision, Trained& trained,
           bool shares_memory = false, const std::function<void(StateTraining&, int)>& behind_step = {});

void check_same_training(const Trained& a, const Trained& b);

struct Sharing {
  int ranks, stage;
  bool shares_memory;
};

/// CHECKs that the config's optimizers train to the same bits in memory and as `filed` says, with slices of
/// several chunks.
void check_files_of_every_optimizer(
    const std::vector<Sharing>& sharings,
    const std::function<StateCase(const StateCase& how, int ranks, const std::filesystem::path& folder)>&
        filed);

/// Flips one bit in the middle of every MiB of the unnamed files in `folder` that this process has open.
void flip_bits_in_files_of(const std::filesystem::path& folder);

}  // namespace zerorun::testing
