// The checked command line of `gpt2`. Owned by main(), immutable after parsing.
#pragma once

#include <zerorun/plan.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "samples/common/arguments.h"
#include "samples/common/hyperparameters.h"
#include "samples/gpt2/model.h"

namespace samples {

struct ProgramOptions {
  DeepspeedFlags deepspeed;
  Hyperparameters hyperparameters{
      .micro_batch = 8, .accumulation = 1, .lr = 2e-3, .weight_decay = 0.1, .warmup = 40};
  Gpt2Options model;  // from --init's config.json if there is one, else from flags; then positions is --seq
  int64_t seq = 128;  // tokens of a sample
  int64_t steps = 580;
  std::vector<std::string> data;  // empty: ZeroRun's own sources
  std::vector<double> weights;    // one for each file of `data`; empty: the files are one text
  std::string field;              // key of the texts, if `data` is JSON
  std::string tokenizer;          // folder; empty: the tokenizer of `init` if it has one, else bytes
  std::string cache;              // folder for token files
  std::string eval;               // held-out text
  int64_t eval_every = 0;         // optimizer steps; 0: at the end only
  std::string init;
  std::string save;  // a .safetensors file, or a folder
  std::string csv;
  std::string save_dir;    // folder for checkpoints
  int64_t save_every = 0;  // optimizer steps; 0: at the end only
  int64_t keep_last = 0;   // checkpoints to keep; 0: all
  bool save_on_sigterm = false;
  std::string resume;  // a folder of checkpoints; training resumes from the latest
  bool new_data = false;
  bool sequential = false;
  int64_t tensor_parallel = 1;  // tensor ranks that share the model
  int64_t pipeline = 1;         // pipeline stages that divide the layers
  int64_t generate = 200;       // tokens of text at the end
  double temperature = 0.8;
  int64_t top_k = 0;
  std::string prompt = "\n";
  std::optional<zerorun::PlanRequest> plan;  // instead of a run

  bool saves_folder() const { return !save.empty() && !save.ends_with(".safetensors"); }
  /// Returns --save if it names a folder, else the folder that contains the file of --save or --csv. Empty if
  /// neither flag is given.
  std::filesystem::path output_folder() const {
    return saves_folder() ? std::filesystem::path(save) : folder_of(save.empty() ? csv : save);
  }
  /// Returns --cache if it is given, else a folder named "tokens" beside --save-dir, --save or --csv (the
  /// first of these that is given). Without any of these flags, returns a folder among the user's caches
  /// (user_cache_folder()), and makes it.
  std::filesystem::path cache_folder() const;
};

/// Parses and checks the command line. For --help, prints the help and returns nothing. Throws UserError
/// naming the flag.
std::optional<ProgramOptions> parse_options(int argc, char** argv);

}  // namespace samples
