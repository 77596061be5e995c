// The command line of `gpt2`, checked. Owned by main(); immutable after parsing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "samples/common/arguments.h"
#include "samples/common/hyperparameters.h"
#include "samples/gpt2/model.h"

namespace zerorun {

struct ProgramOptions {
  DeepspeedFlags deepspeed;
  Hyperparameters hyperparameters{
      .micro_batch = 8, .accumulation = 1, .lr = 2e-3, .weight_decay = 0.1, .warmup = 40};
  Gpt2Options model;  // positions: --seq, seed: --seed
  int64_t steps = 700;
  std::vector<std::string> data;  // empty: ZeroRun's own sources
  std::string init;
  std::string save;
  std::string csv;
  std::string save_dir;    // for checkpoints
  int64_t save_every = 0;  // optimizer steps; 0: at the end only
  int64_t keep_last = 0;   // checkpoints; 0: all
  bool save_on_sigterm = false;
  std::string resume;  // a folder of checkpoints; training resumes from the latest
  bool sequential = false;
  int64_t generate = 200;  // bytes of text at the end
  std::string prompt = "\n";

  /// The folder of --save, else of --csv; empty if there is neither.
  std::filesystem::path output_folder() const { return folder_of(save.empty() ? csv : save); }
};

/// Returns nothing if --help was given, which has then been printed. Throws UserError naming the flag.
std::optional<ProgramOptions> parse_options(int argc, char** argv);

}  // namespace zerorun
