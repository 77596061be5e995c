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
  Gpt2Options model;  // of --init's config.json if it has one; else positions: --seq
  int64_t seq = 128;  // tokens of a sample
  int64_t steps = 580;
  std::vector<std::string> data;  // empty: ZeroRun's own sources
  std::vector<double> weights;    // of the files of `data`; empty: they are one text
  std::string field;              // of JSON files in `data`
  std::string tokenizer;          // folder; empty: that of `init` if it has one, else bytes
  std::string cache;              // folder for tokens
  std::string eval;               // held-out text
  int64_t eval_every = 0;         // optimizer steps; 0: at the end only
  std::string init;
  std::string save;  // a .safetensors file, or a folder
  std::string csv;
  std::string save_dir;    // for checkpoints
  int64_t save_every = 0;  // optimizer steps; 0: at the end only
  int64_t keep_last = 0;   // checkpoints; 0: all
  bool save_on_sigterm = false;
  std::string resume;  // a folder of checkpoints; training resumes from the latest
  bool new_data = false;
  bool sequential = false;
  int64_t generate = 200;  // tokens of text at the end
  double temperature = 0.8;
  int64_t top_k = 0;
  std::string prompt = "\n";

  bool saves_folder() const { return !save.empty() && !save.ends_with(".safetensors"); }
  /// --save if that is a folder, else the folder of --save, else of --csv; empty if there is neither.
  std::filesystem::path output_folder() const {
    return saves_folder() ? std::filesystem::path(save) : folder_of(save.empty() ? csv : save);
  }
  /// --cache, else the folder tokens beside --save-dir, --save or --csv, else one in the system's folder for
  /// temporary files.
  std::filesystem::path cache_folder() const;
};

/// Returns nothing if --help was given, which has then been printed. Throws UserError naming the flag.
std::optional<ProgramOptions> parse_options(int argc, char** argv);

}  // namespace zerorun
