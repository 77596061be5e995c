#include "samples/gpt2/options.h"

#include <unistd.h>
#include <zerorun/program.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <tuple>

#include "samples/common/files.h"
#include "samples/gpt2/model_folder.h"

namespace samples {
namespace fs = std::filesystem;
namespace {

using zerorun::UserError;

struct Range {
  const char* flag;
  int64_t value;
  int64_t min;
  int64_t max;
};

void check_ranges(const ProgramOptions& options) {
  const Gpt2Options& model = options.model;
  const Range ranges[] = {
      {"--layers", model.layers, 1, 1000},
      {"--hidden", model.hidden, 1, 1 << 16},
      {"--heads", model.heads, 1, 1 << 16},
      {"--vocab", model.vocab > 0 ? model.vocab : 256, 256, 1 << 20},
      {"--seq", options.seq, 2, 1 << 20},
      {"--steps", options.steps, 0, 1'000'000'000},
      {"--generate", options.generate, 0, 1 << 20},
      {"--save-every", options.save_every, 0, 1'000'000'000},
      {"--eval-every", options.eval_every, 0, 1'000'000'000},
      {"--top-k", options.top_k, 0, 1 << 20},
      {"--tensor-parallel", options.tensor_parallel, 1, 1 << 16},
      {"--pipeline", options.pipeline, 1, 1 << 16},
  };
  for (const Range& range : ranges) {
    if (range.min <= range.value && range.value <= range.max) continue;
    throw UserError(std::string(range.flag) + " " + std::to_string(range.value) + ": expected " +
                    std::to_string(range.min) + " to " + std::to_string(range.max) +
                    (range.flag == std::string("--vocab") ? " (there are 256 bytes)" : ""));
  }
  if (model.hidden % model.heads != 0) {
    throw UserError("--heads " + std::to_string(model.heads) + " does not divide --hidden " +
                    std::to_string(model.hidden) + ": expected a divisor of it");
  }
  if (!(options.temperature >= 0)) throw UserError("--temperature: expected 0 or more");
  if (options.eval_every > 0 && options.eval.empty()) throw UserError("--eval-every needs --eval FILE");
  if (options.generate > 0 && options.prompt.empty()) {
    throw UserError("--prompt is empty: expected at least one byte to go on from (or --generate 0)");
  }
}

// Throws UserError if the output file cannot be written, so that the user learns it before training and not
// after it.
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

void check_output_folder(const ProgramOptions& options) {
  std::error_code error;
  const fs::path extension = fs::path(options.save).extension();
  const bool looks_like_file = extension == ".bin" || extension == ".pt" || extension == ".pth";
  const bool is_file = fs::exists(options.save, error) && !fs::is_directory(options.save, error);
  const fs::path parent = folder_of(fs::path(options.save).lexically_normal());
  if (options.saves_folder() && !fs::is_directory(parent.empty() ? "." : parent, error))
    throw UserError("--save " + options.save + ": the folder " + parent.string() +
                    " does not exist: create it first");
  if (options.saves_folder() && (looks_like_file || is_file))
    throw UserError("--save " + options.save + ": expected a folder, or the name of a .safetensors file");
}

// Takes the model's shape from --init's config.json, if it has one. Throws UserError if a flag contradicts
// it.
void take_shape_of_folder(const CLI::App& app, ProgramOptions& options) {
  std::error_code error;
  if (options.init.empty() || !fs::exists(fs::path(options.init) / "config.json", error)) return;
  const uint64_t seed = options.model.seed;
  const Gpt2Options asked = options.model;
  options.model = read_model_config(options.init);
  options.model.seed = seed;
  const std::tuple<const char*, int64_t, int64_t> shapes[] = {
      {"--layers", asked.layers, options.model.layers},
      {"--hidden", asked.hidden, options.model.hidden},
      {"--heads", asked.heads, options.model.heads},
      {"--vocab", asked.vocab, options.model.vocab}};
  for (const auto& [flag, value, in_file] : shapes) {
    if (app.count(flag) == 0 || value == in_file) continue;
    throw UserError(std::string(flag) + " " + std::to_string(value) + ": " + options.init +
                    "/config.json says " + std::to_string(in_file) + ": leave the flag out");
  }
  if (app.count("--seq") == 0) options.seq = std::min(options.seq, options.model.positions);
  if (options.seq > options.model.positions)
    throw UserError("--seq " + std::to_string(options.seq) + ": the model of " + options.init + " has " +
                    std::to_string(options.model.positions) + " positions");
}

}  // namespace

fs::path ProgramOptions::cache_folder() const {
  if (!cache.empty()) return cache;
  for (const std::string& output : {save_dir, save, csv}) {
    fs::path path = fs::path(output).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();  // the path ended with a slash
    if (!output.empty()) return folder_of(path) / "tokens";
  }
  return user_cache_folder("zerorun-tokens");
}

std::optional<ProgramOptions> parse_options(int argc, char** argv) {
  ProgramOptions options;
  CLI::App app("Trains a GPT-2 on text with ZeRO and generates some text with it.", "gpt2");
  app.option_defaults()->always_capture_default();
  options.deepspeed.add_to(app);
  app.add_option("--layers", options.model.layers, "transformer blocks");
  app.add_option("--hidden", options.model.hidden, "width of the model");
  app.add_option("--heads", options.model.heads, "attention heads; a divisor of --hidden");
  app.add_option("--vocab", options.model.vocab,
                 "tokens; at least as many as the tokenizer has (default: as many)");
  app.add_option("--seq", options.seq, "tokens of a sample");
  app.add_option("--steps", options.steps, "optimizer steps");
  app.add_option("--tensor-parallel", options.tensor_parallel,
                 "ranks that split the layers among themselves; a divisor of the number of ranks");
  app.add_option("--pipeline", options.pipeline,
                 "stages of ranks that divide the layers; a divisor of the number of ranks. No text is "
                 "generated with several");
  app.add_option("--seed", options.model.seed,
                 "seed of initial weights, order of samples, and generated text");
  app.add_option("--data", options.data, "text to train on (default: ZeroRun's own sources)")
      ->type_name("FILE...");
  app.add_option("--weights", options.weights, "relative number of samples from each file of --data")
      ->type_name("NUMBER...");
  app.add_option("--field", options.field, "--data is JSON or JSON lines: train on the texts under this key")
      ->type_name("KEY");
  app.add_option("--tokenizer", options.tokenizer,
                 "Hugging Face folder of a byte-level BPE (default: that of --init, else bytes)")
      ->type_name("DIR");
  app.add_option("--cache", options.cache,
                 "where tokens are kept (default: the folder tokens beside the output)")
      ->type_name("DIR");
  app.add_option("--eval", options.eval, "held-out text, whose perplexity is measured at the end")
      ->type_name("FILE");
  app.add_option("--eval-every", options.eval_every,
                 "also measure it every so many optimizer steps (0: never)");
  app.add_option("--init", options.init, "initial weights: a .safetensors file, or a Hugging Face folder")
      ->type_name("PATH");
  app.add_option("--save", options.save,
                 "where to write the trained model: a .safetensors file, or a Hugging Face folder")
      ->type_name("PATH");
  app.add_option("--save-dir", options.save_dir,
                 "folder for checkpoints; one is saved at the end. After a restart (zerorun --max_restarts) "
                 "training goes on from the newest one there")
      ->type_name("DIR");
  app.add_option("--save-every", options.save_every,
                 "also save one every so many optimizer steps (0: never)");
  app.add_option("--keep-last", options.keep_last, "number of checkpoints to keep (0: all)")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--save-on-sigterm", options.save_on_sigterm, "on SIGTERM finish the step, save and exit");
  app.add_option("--resume", options.resume, "folder of checkpoints; training continues from the latest")
      ->type_name("DIR");
  app.add_flag("--new-data", options.new_data, "with --resume: start at the first sample of other --data");
  app.add_option("--csv", options.csv, "file to which each step writes a line")->type_name("FILE");
  app.add_flag("--sequential", options.sequential, "read the text from front to back instead of shuffled");
  app.add_option("--generate", options.generate, "tokens of text to generate at the end");
  app.add_option("--temperature", options.temperature, "of that text; 0: always the most probable token");
  app.add_option("--top-k", options.top_k, "sample among this many most probable tokens (0: all)");
  app.add_option("--prompt", options.prompt, "start of the generated text (default: a newline)")
      ->default_str("")
      ->type_name("TEXT");
  options.hyperparameters.add_to(app);
  app.footer(
      "... --plan [--help]: says what this training would take of memory and of the network, instead of "
      "running it.");
  const int plan = zerorun::find_plan(argc, argv);
  if (!parse_arguments(app, plan, argv)) return std::nullopt;
  if (plan < argc) {
    options.plan = zerorun::parse_plan_request(argc - plan, argv + plan);
    if (!options.plan) return std::nullopt;
  }
  options.model.positions = options.seq;
  if (app.count("--vocab") == 0) options.model.vocab = 0;  // the caller takes the tokenizer's size
  take_shape_of_folder(app, options);
  check_ranges(options);
  if (!options.saves_folder()) check_output("--save", options.save);
  check_output_folder(options);
  check_output("--csv", options.csv);
  const bool saves = options.save_every > 0 || options.keep_last > 0 || options.save_on_sigterm;
  if (saves && options.save_dir.empty()) {
    throw UserError("--save-every, --keep-last and --save-on-sigterm need --save-dir: name a folder");
  }
  return options;
}

}  // namespace samples
