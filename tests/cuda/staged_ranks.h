// Trains the tiny GPT-2 on ranks that are processes, through a StagedCommunicator or on the CPU. A rank is
// this test program, started anew: so no process that has used CUDA forks, and every rank loads
// libzerorun_cuda.so as programs do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace zerorun::testing {

enum class Where {
  cpu,       // on the CPU, without staging
  recorded,  // staged, on the recording device (recording_device.h)
  gpu,       // staged; all ranks share the first GPU
};

/// Runs the hidden test case `name` of this program in `ranks` new processes, and REQUIREs that it passes in
/// all of them. `folder` is where the processes find and leave files.
void run_on_ranks(const std::string& name, Where where, int ranks, const std::filesystem::path& folder);

// For hidden test cases that run_on_ranks() runs:

/// The folder given to run_on_ranks(). FAILs if nobody runs this process as a rank.
std::filesystem::path folder_of_rank();
/// Connects the ranks for CPU tensors.
std::shared_ptr<Communicator> connect_on_cpu();
/// The first GPU, as programs get it.
std::shared_ptr<Device> first_gpu();
/// Returns a function that keeps the GPU's current stream busy for about the given time.
std::function<void(int64_t microseconds)> gpu_delay();

/// One training. All ranks of a group train the same runs, one after another.
struct Run {
  std::string name;
  std::string config;  // ds_config.json text
  int64_t first_step = 0;
  int64_t steps = 4;  // the number of the last step, plus 1
  std::vector<int64_t> infinite_steps = {};
  std::filesystem::path resume_from = {};  // loads this folder's latest checkpoint before training
  std::filesystem::path save_to = {};      // saves a checkpoint there after training
  bool splits = false;                     // whether tensor ranks split the model
  std::string same_as = {};                // the name of a run that gives the same bits
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

/// CHECKs that each data group of an in_two_groups() run has the bits of the run alone.
void check_groups_are(const Outcome& grouped, const Outcome& alone);

/// A configuration of the tiny GPT-2 with many small buckets, of which stage 3 keeps only a part.
/// `precision`: "fp32", "bf16" or "fp16". `more`: text to add to zero_optimization, beginning with a comma.
std::string config_of(int stage, const std::string& precision, int accumulation,
                      const std::string& more = "");

/// All stages, with updates on the device or on the host. They give the same bits, with one exception: with
/// accumulation, stages 2 and 3 add over ranks before they add micro-steps, stages 0 and 1 afterwards.
/// Run::same_as says it. The names are `prefix` and what differs.
std::vector<Run> all_stages(const std::string& prefix, const std::string& precision, int accumulation);

/// The same runs in a mesh in which two ranks have each data coordinate. Twice the ranks of `runs` train
/// them.
std::vector<Run> in_two_groups(std::vector<Run> runs);

/// The first four of the runs, with two pipeline stages that divide the model.
std::vector<Run> divided_in_two(std::vector<Run> runs);
/// The same runs on such a mesh, in which two ranks split the model.
std::vector<Run> split_in_two(std::vector<Run> runs);

/// Runs that load the bf16 checkpoint in `folder`, which was saved after 4 steps: "loaded" trains no step,
/// "stage 1" and "stage 3" train 3 more.
std::vector<Run> continued_runs(const std::filesystem::path& folder);

}  // namespace zerorun::testing
