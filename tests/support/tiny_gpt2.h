// The model, data and training loop of the golden traces (tests/golden/README.md), on rank-threads.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "engine/engine.h"

namespace zerorun::testing {

/// The training text of the golden traces: the first 32,768 bytes of /usr/share/common-licenses/GPL-3, or of
/// tests/golden/data/GPL-3 where a bundle for another machine has it. If that file is missing or different,
/// the function prints the reason and exits with 77, which ctest reports as a skipped test.
const std::vector<uint8_t>& golden_text();

struct RunOptions {
  int world_size = 2;
  int64_t steps = 10;
  std::optional<int64_t> bucket_numel = {};
  /// If set, there are two parameter groups: tensors of two or more dimensions with this weight decay, and
  /// the other tensors with none.
  std::optional<double> group_weight_decay = {};
  /// In these steps every rank multiplies its loss by infinity before backward.
  std::vector<int64_t> inject_inf_steps = {};
  /// Wraps the rank-threads' communicator for one rank's training.
  std::function<std::shared_ptr<Communicator>(std::shared_ptr<Communicator>)> communicator_for = {};
  /// As in run_ranks().
  std::optional<bool> shares_memory = {};
  /// If set, the run loads the latest checkpoint of this folder and trains from `first_step` on.
  std::filesystem::path resume_from = {};
  int64_t first_step = 0;
  /// If the config has several tensor ranks: whether they split the model; else each data group trains its
  /// own.
  bool splits = false;
  /// Called on every rank before the first step, in the rank's thread. It must not use Catch2's assertions,
  /// which are for one thread only.
  std::function<void(torch::nn::Module&, int rank)> before_training = {};
  /// Called on every rank after the last step, under the same rules.
  std::function<void(Engine&)> after_training = {};
};

struct RunResult {
  std::vector<std::vector<std::vector<double>>> losses;  // [step][rank][micro-step]
  std::vector<double> grad_norms;                        // [step]
  std::vector<double> loss_scales;                       // [step], after the step
  std::vector<int64_t> skipped;                          // [step], after the step
  std::optional<int64_t> raised;                         // step that threw TrainingError and ended the run
  std::vector<std::vector<double>> lrs;                  // [step][group], as used by the step
  std::vector<std::vector<std::optional<std::pair<double, double>>>> betas;  // [step][group], after the step
  std::vector<std::pair<std::string, at::Tensor>> parameters;                // rank 0's final values
  BytesByCategory bytes;                                                     // of rank 0, at the end
  double formula_bytes = 0;
  ResidencyReport residency;    // of rank 0
  double reduce_scattered = 0;  // elements sent by rank 0 over all steps
  double all_gathered = 0;

  double mean_loss(size_t step) const;
};

/// Trains from tests/golden/data/init_tiny_seed1234.safetensors with `config` (ds_config.json text).
RunResult train_tiny_gpt2(const std::string& config, const RunOptions& options);

/// Trains one rank of `communicator`'s ranks, which may be processes. If the config's mesh has pipeline
/// stages, they divide the model, a step has one loss, and rank 0's parameters are those of its stage.
/// Ignores options.world_size and options.communicator_for. Writes this rank's losses to result.losses, which
/// has room for all steps and ranks; on rank 0 also all else.
void train_rank(const std::string& config, const RunOptions& options,
                const std::shared_ptr<Communicator>& communicator, RunResult& result);

/// The largest relative difference between the two runs' mean losses, over all steps.
double largest_relative_loss_difference(const RunResult& a, const RunResult& b);

/// CHECKs that losses, norms, loss scales and final parameters have the same bits.
void check_same_bits(const RunResult& a, const RunResult& b);

}  // namespace zerorun::testing
