#include "samples/gpt2/options.h"

#include <unistd.h>
#include <zerorun/program.h>

#include <filesystem>

namespace zerorun {
namespace fs = std::filesystem;
namespace {

struct Range {
  const char* flag;
  int64_t value;
  int64_t min;
  int64_t max;
};

void check_ranges(const ProgramOptions& options) {
  const Gpt2Options& model = options.model;
  const Range ranges[] = {
      {"--layers", model.layers, 1, 1000},          {"--hidden", model.hidden, 1, 1 << 16},
      {"--heads", model.heads, 1, 1 << 16},         {"--vocab", model.vocab, 256, 1 << 20},
      {"--seq", model.positions, 2, 1 << 20},       {"--steps", options.steps, 0, 1'000'000'000},
      {"--generate", options.generate, 0, 1 << 20}, {"--save-every", options.save_every, 0, 1'000'000'000},
  };
  for (const Range& range : ranges) {
    if (range.min <= range.value && range.value <= range.max) continue;
    throw UserError(std::string(range.flag) + " " + std::to_string(range.value) + ": expected " +
                    std::to_string(range.min) + " to " + std::to_string(range.max) +
                    (range.flag == std::string("--vocab") ? " (each byte is a token)" : ""));
  }
  if (model.hidden % model.heads != 0) {
    throw UserError("--heads " + std::to_string(model.heads) + " does not divide --hidden " +
                    std::to_string(model.hidden) + ": expected a divisor of it");
  }
  if (options.generate > 0 && options.prompt.empty()) {
    throw UserError("--prompt is empty: expected at least one byte to go on from (or --generate 0)");
  }
}

// Reports before the training what would otherwise fail after it.
void check_output(const std::string& flag, const std::string& file) {
  if (file.empty()) return;
  std::error_code error;
  const fs::path folder = folder_of(file);
  if (fs::is_directory(file, error))
    throw UserError(flag + " " + file + ": is a directory, expected a file name");
  if (!fs::is_directory(folder, error)) {
    throw UserError(flag + " " + file + ": the folder " + folder.string() +
                    " does not exist: create it first");
  }
  if (::access(folder.c_str(), W_OK) != 0) {
    throw UserError(flag + " " + file + ": no permission to write in the folder " + folder.string());
  }
}

}  // namespace

std::optional<ProgramOptions> parse_options(int argc, char** argv) {
  ProgramOptions options;
  CLI::App app("Trains a GPT-2 on the bytes of text files under ZeRO and writes some text with it.", "gpt2");
  app.option_defaults()->always_capture_default();
  options.deepspeed.add_to(app);
  app.add_option("--layers", options.model.layers, "transformer blocks");
  app.add_option("--hidden", options.model.hidden, "width of the model");
  app.add_option("--heads", options.model.heads, "attention heads; a divisor of --hidden");
  app.add_option("--vocab", options.model.vocab, "tokens; the first 256 are the bytes");
  app.add_option("--seq", options.model.positions, "bytes of a sample");
  app.add_option("--steps", options.steps, "optimizer steps");
  app.add_option("--seed", options.model.seed, "of initial weights, order of samples, and generated text");
  app.add_option("--data", options.data, "text to train on (default: ZeroRun's own sources)")
      ->type_name("FILE...");
  app.add_option("--init", options.init, "initial weights: a .safetensors file, or a Hugging Face folder")
      ->type_name("PATH");
  app.add_option("--save", options.save, "where to write the trained weights, .safetensors")
      ->type_name("FILE");
  app.add_option("--save-dir", options.save_dir, "folder for checkpoints, one at the end")->type_name("DIR");
  app.add_option("--save-every", options.save_every, "and one every so many optimizer steps (0: none)");
  app.add_option("--keep-last", options.keep_last, "checkpoints that stay in it (0: all)")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--save-on-sigterm", options.save_on_sigterm, "on SIGTERM save the step under way and end");
  app.add_option("--resume", options.resume, "folder of checkpoints, whose latest is gone on from")
      ->type_name("DIR");
  app.add_option("--csv", options.csv, "where to write a line a step")->type_name("FILE");
  app.add_flag("--sequential", options.sequential, "read the text from front to back instead of shuffled");
  app.add_option("--generate", options.generate, "bytes of text to write at the end");
  app.add_option("--prompt", options.prompt, "what the text goes on from (default: a newline)")
      ->default_str("")
      ->type_name("TEXT");
  options.hyperparameters.add_to(app);
  if (!parse_arguments(app, argc, argv)) return std::nullopt;
  check_ranges(options);
  check_output("--save", options.save);
  if (!options.save.empty() && fs::path(options.save).extension() != ".safetensors")
    throw UserError("--save " + options.save + ": expected the name of a .safetensors file");
  check_output("--csv", options.csv);
  const bool saves = options.save_every > 0 || options.keep_last > 0 || options.save_on_sigterm;
  if (saves && options.save_dir.empty()) {
    throw UserError("--save-every, --keep-last and --save-on-sigterm are about --save-dir: name a folder");
  }
  return options;
}

}  // namespace zerorun
