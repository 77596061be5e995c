// Trains the tiny GPT-2 on ranks that are processes, through a StagedCommunicator or on the CPU. A rank is
// this test program, started anew: so no process that has used CUDA forks, and every rank loads
// libzerorun_cuda.so as programs do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace zerorun::testing {

enum class Where {
  cpu,       // on the CPU, without staging
  recorded,  // staged, on the recording device (recording_device.h)
  gpu,       // staged; all ranks share the first GPU
};

/// One training. All ranks of a group train the same runs, one after another.
struct Run {
  std::string name;
  std::string config;  // ds_config.json text
  int64_t first_step = 0;
  int64_t steps = 4;  // the number of the last step, plus 1
  std::vector<int64_t> infinite_steps = {};
  std::filesystem::path resume_from = {};  // loads this folder's latest checkpoint before training
  std::filesystem::path save_to = {};      // saves a checkpoint there after training
};

struct Outcome {
  std::vector<std::vector<std::vector<double>>> losses = {};  // [step][rank][micro-step]
  std::vector<double> grad_norms = {};                        // [step]
  std::vector<double> loss_scales = {};                       // [step]
  int64_t skipped = 0;
  std::map<std::string, uint64_t> parameters = {};  // by name: a hash of the final values
  std::vector<std::string> violations = {};         // of all ranks, if recorded (stream_checker.h)

  double mean_loss(size_t step) const;
};
using Outcomes = std::map<std::string, Outcome>;  // by the run's name

/// Trains `runs` on `ranks` new processes. REQUIREs that all of them end well. With staging, random delays
/// come before and after each collective, unless the environment has ZERORUN_TEST_DELAY=0 (default: at most
/// 300 microseconds).
Outcomes train_in_processes(Where where, int ranks, const std::vector<Run>& runs);

/// CHECKs that losses, norms, loss scales and final parameters have the same bits.
void check_same_bits(const Outcome& a, const Outcome& b);

/// A configuration of the tiny GPT-2 with many small buckets, of which stage 3 keeps only a part.
/// `precision`: "fp32", "bf16" or "fp16". `more`: text to add to zero_optimization, beginning with a comma.
std::string config_of(int stage, const std::string& precision, int accumulation,
                      const std::string& more = "");

}  // namespace zerorun::testing
