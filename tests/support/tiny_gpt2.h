// The model, data and training loop of the golden traces (tests/golden/README.md), on rank-threads.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "engine/engine.h"

namespace zerorun::testing {

/// The text of the traces: the first 32,768 bytes of /usr/share/common-licenses/GPL-3. Where that file is
/// missing or another one, prints the reason and ends the process with 77, ctest's sign for a skipped test.
const std::vector<uint8_t>& golden_text();

struct RunOptions {
  int world_size = 2;
  int64_t steps = 10;
  std::optional<int64_t> bucket_numel;
  /// Two parameter groups: this weight decay for tensors of two or more dimensions, none for the others.
  std::optional<double> group_weight_decay;
  /// At these steps every rank multiplies its loss by infinity before backward.
  std::vector<int64_t> inject_inf_steps = {};
  /// Makes the communicator that a rank is to train with from the one of the rank-threads.
  std::function<std::shared_ptr<Communicator>(std::shared_ptr<Communicator>)> communicator_for = {};
  /// As run_ranks() takes it.
  std::optional<bool> shares_memory = {};
};

struct RunResult {
  std::vector<std::vector<std::vector<double>>> losses;  // [step][rank][micro-step]
  std::vector<double> grad_norms;                        // [step]
  std::vector<double> loss_scales;                       // [step], after it
  std::vector<int64_t> skipped;                          // [step], after it
  std::optional<int64_t> raised;                         // the step that threw TrainingError, the last
  std::vector<std::vector<double>> lrs;                  // [step][group], as used by the step
  std::vector<std::vector<std::optional<std::pair<double, double>>>> betas;  // [step][group], after it
  std::vector<std::pair<std::string, at::Tensor>> parameters;  // in the end, of rank 0, equal on all ranks
  BytesByCategory bytes;                                       // of rank 0, in the end
  double formula_bytes = 0;
  ResidencyReport residency;    // of rank 0
  double reduce_scattered = 0;  // elements sent by rank 0 over all steps
  double all_gathered = 0;

  double mean_loss(size_t step) const;
};

/// Trains from tests/golden/data/init_tiny_seed1234.safetensors with `config` (ds_config.json text).
RunResult train_tiny_gpt2(const std::string& config, const RunOptions& options);

/// Of the mean losses, over all steps.
double largest_relative_loss_difference(const RunResult& a, const RunResult& b);

/// Whether losses, norms and final parameters are the same to the bit; CHECKs each and names the first
/// difference.
void check_same_bits(const RunResult& a, const RunResult& b);

}  // namespace zerorun::testing
