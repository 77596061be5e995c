#include "launcher/commands/checkpoint_command.h"

#include <fnmatch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "convert/export_checkpoint.h"
#include "convert/import_checkpoint.h"
#include "launcher/commands/checkpoint_reports.h"
#include "launcher/commands/command_line.h"
#include "launcher/print.h"

namespace zerorun::launcher {
namespace {

namespace fs = std::filesystem;

constexpr int kEqual = 0;
constexpr int kDifferent = 1;  // for `diff`; for `verify`: damaged
constexpr int kStays = 1;      // for `prune`

struct CheckpointArguments {
  std::vector<std::string> paths;
  std::string tag;
  std::string parameters = "*";
  bool json = false;
  bool dry_run = false;
  bool replace = false;
  int64_t keep = 0;
  int64_t keep_every = 0;
  std::string dtype = "fp32";
  std::string max_shard_size = "5GB";
};

template <typename Result, typename... More>
void print_result(const CheckpointArguments& arguments, const Result& result, const More&... more) {
  if (arguments.json) {
    print_json(to_json(result, more...));
  } else {
    print(to_text(result, more...));
  }
}

checkpoint::SavedState open_checkpoint(const std::string& path, const std::string& tag = "") {
  checkpoint::FileSystem& files = checkpoint::local_file_system();
  return checkpoint::SavedState(files, checkpoint::checkpoint_folder(files, path, tag));
}

int list(const CheckpointArguments& arguments) {
  print_result(arguments, checkpoint::list_tags(checkpoint::local_file_system(), arguments.paths.front()));
  return kEqual;
}

int inspect(const CheckpointArguments& arguments) {
  const checkpoint::SavedState saved = open_checkpoint(arguments.paths.front(), arguments.tag);
  std::vector<std::string> shown;
  for (const auto& [name, parameter] : saved.manifest().parameters) {
    if (::fnmatch(arguments.parameters.c_str(), name.c_str(), 0) == 0) shown.push_back(name);
  }
  if (shown.empty() && !saved.manifest().parameters.empty())
    throw UserError(arguments.paths.front() + ": no parameter name matches \"" + arguments.parameters + "\"");
  print_result(arguments, saved, shown);
  return kEqual;
}

// Reports an unreadable manifest as damage instead of throwing: verify() goes on to the next checkpoint.
checkpoint::Verification verified(const fs::path& folder) {
  try {
    return checkpoint::verify_checkpoint(checkpoint::local_file_system(), folder);
  } catch (const UserError& error) {
    checkpoint::Verification result;
    result.damages.push_back({.file = "", .block = -1, .what = error.what()});
    return result;
  }
}

int verify(const CheckpointArguments& arguments) {
  bool passed = true;
  auto results = nlohmann::ordered_json::array();
  for (const std::string& path : arguments.paths) {
    const fs::path folder =
        checkpoint::checkpoint_folder(checkpoint::local_file_system(), path, arguments.tag);
    const auto start = std::chrono::steady_clock::now();
    const checkpoint::Verification result = verified(folder);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    passed = passed && result.passed();
    results.push_back(to_json(result, folder.string()));
    if (!arguments.json) print(to_text(result, folder.string(), taken.count()));
  }
  if (arguments.json) print_json({{"whole", passed}, {"checkpoints", std::move(results)}});
  return passed ? kEqual : kDifferent;
}

int diff(const CheckpointArguments& arguments) {
  checkpoint::SavedState first = open_checkpoint(arguments.paths.at(0));
  checkpoint::SavedState second = open_checkpoint(arguments.paths.at(1));
  const checkpoint::CheckpointComparison result = checkpoint::compare_checkpoints(first, second);
  print_result(arguments, result);
  return result.equal() ? kEqual : kDifferent;
}

int run_prune(const CheckpointArguments& arguments) {
  const fs::path directory = arguments.paths.front();
  checkpoint::PrunePlan plan =
      checkpoint::plan_prune(checkpoint::local_file_system(), directory,
                             {.keep = arguments.keep, .keep_every = arguments.keep_every});
  const bool is_done =
      arguments.dry_run || checkpoint::prune(checkpoint::local_file_system(), directory, plan);
  print_result(arguments, plan, arguments.dry_run);
  return is_done ? kEqual : kStays;
}

// The bytes in "5GB", "500MB", "2GiB" or a plain number. Units as in Hugging Face: GB is 10^9, GiB is 2^30.
int64_t bytes_of(const std::string& text) {
  size_t digits = 0;
  while (digits < text.size() && digits < 12 && text[digits] >= '0' && text[digits] <= '9') ++digits;
  const std::pair<std::string_view, int64_t> units[] = {{"", 1},
                                                        {"KB", 1000},
                                                        {"MB", 1'000'000},
                                                        {"GB", 1'000'000'000},
                                                        {"KiB", int64_t{1} << 10},
                                                        {"MiB", int64_t{1} << 20},
                                                        {"GiB", int64_t{1} << 30}};
  for (const auto& [unit, bytes] : units) {
    int64_t product = 0;
    if (digits == 0 || text.substr(digits) != unit) continue;
    const bool fits = !__builtin_mul_overflow(std::stoll(text.substr(0, digits)), bytes, &product);
    if (fits && product > 0) return product;
  }
  throw UserError("--max-shard-size: expected a size such as 5GB, 500MB or 2GiB, found " + text);
}

int run_export(const CheckpointArguments& arguments) {
  checkpoint::SavedState saved = open_checkpoint(arguments.paths.at(0), arguments.tag);
  const Dtype dtype = arguments.dtype == "fp32"   ? Dtype::fp32
                      : arguments.dtype == "bf16" ? Dtype::bf16
                                                  : Dtype::fp16;
  const convert::ExportedModel exported =
      convert::export_checkpoint(checkpoint::local_file_system(), saved, arguments.paths.at(1),
                                 {.dtype = dtype, .max_shard_bytes = bytes_of(arguments.max_shard_size)});
  if (arguments.json) {
    print_json({{"folder", arguments.paths.at(1)},
                {"files", exported.files},
                {"tensors", exported.tensors},
                {"bytes", exported.bytes},
                {"left_out", exported.left_out}});
    return kEqual;
  }
  for (const std::string& name : exported.left_out)
    print("left out, because the checkpoint does not have it: " + name + "\n");
  print(arguments.paths.at(1) + ": " + std::to_string(exported.tensors) + " tensors (" + arguments.dtype +
        ", " + readable_bytes(exported.bytes) + ") in " + exported.files.front() +
        (exported.files.size() > 1 ? " to " + exported.files.at(exported.files.size() - 2) : "") + "\n");
  return kEqual;
}

int run_import(const CheckpointArguments& arguments) {
  const convert::DeepSpeedCheckpoint source =
      convert::read_deepspeed_checkpoint(checkpoint::local_file_system(), arguments.paths.at(0));
  const convert::ImportedCheckpoint imported = convert::import_checkpoint(
      checkpoint::local_file_system(), source, arguments.paths.at(1), arguments.tag, arguments.replace);
  const convert::DeepSpeedFacts& facts = source.facts;
  if (arguments.json) {
    print_json({{"folder", imported.folder.string()},
                {"files", imported.files},
                {"bytes", imported.bytes},
                {"parameters", source.parameters.size()},
                {"deepspeed", facts.version},
                {"stage", source.stage},
                {"world_size", facts.world_size},
                {"precision", facts.precision},
                {"optimizer", facts.optimizer},
                {"step", facts.generation},
                {"left_out", facts.left_out}});
    return kEqual;
  }
  print("DeepSpeed " + (facts.version.empty() ? std::string("(version unknown)") : facts.version) +
        ", stage " + std::to_string(source.stage) + ", " + std::to_string(facts.world_size) + " ranks, " +
        facts.precision + ", " + facts.optimizer + ", after " + std::to_string(facts.generation) +
        " optimizer steps\n");
  for (const std::string& what : facts.left_out) print("not imported: " + what + "\n");
  print(imported.folder.string() + ": " + std::to_string(source.parameters.size()) + " parameters, " +
        readable_bytes(imported.bytes) + "\n");
  return kEqual;
}

constexpr char kCheckpointFooter[] =
    R"(CHECKPOINT is the folder of one tag, or the folder above it (then --tag or the file `latest` says which).

Examples:
  zerorun checkpoint list out                          every checkpoint in the folder out, newest first
  zerorun checkpoint inspect out --parameter "*.wte.*" its counters, and the parameters named like that
  zerorun checkpoint verify out/global_step100         reads every block and compares it with its checksum
  zerorun checkpoint diff out/global_step100 other     parameters and settings that differ
  zerorun checkpoint prune out --keep 3 --dry-run      what would be removed
  zerorun checkpoint export out model --dtype bf16     model.safetensors, for Hugging Face's loaders
  zerorun checkpoint import deepspeed_out out          a checkpoint that DeepSpeed wrote

Exit code: 0; diff: 1 different; verify: 1 damaged; prune: 1 not all removed; 2 for a mistake on this command line or a folder that cannot be read.)";

struct Command {
  CLI::App* app;
  int (*run)(const CheckpointArguments&);
};

Command add(CLI::App& app, CheckpointArguments& arguments, const char* name, const char* description,
            const char* paths, int expected, int (*run)(const CheckpointArguments&)) {
  CLI::App* command = app.add_subcommand(name, description);
  command->add_option(paths, arguments.paths)->required()->expected(expected);
  command->add_flag("--json", arguments.json, "Print JSON");
  return {command, run};
}

std::vector<Command> add_commands(CLI::App& app, CheckpointArguments& arguments) {
  constexpr int kAny = -1;
  auto add_tag = [&](CLI::App* command, const char* description) {
    command->add_option("--tag", arguments.tag, description)->type_name("TAG");
  };
  std::vector<Command> commands;
  commands.push_back(add(app, arguments, "list", "List the checkpoints in a folder", "FOLDER", 1, list));
  commands.push_back(add(app, arguments, "inspect", "Print what a checkpoint has", "CHECKPOINT", 1, inspect));
  add_tag(commands.back().app, "Which checkpoint of the folder");
  commands.back()
      .app->add_option("--parameter", arguments.parameters, "Only parameters named like this pattern")
      ->type_name("PATTERN");
  commands.push_back(
      add(app, arguments, "verify", "Read every block and compare checksums", "CHECKPOINTS", kAny, verify));
  add_tag(commands.back().app, "Which checkpoint of the folders");
  commands.push_back(add(app, arguments, "diff", "Compare two checkpoints", "CHECKPOINTS", 2, diff));
  commands.push_back(add(app, arguments, "prune",
                         "Remove old checkpoints that ZeroRun has named (global_stepN)", "FOLDER", 1,
                         run_prune));
  commands.back()
      .app->add_option("--keep", arguments.keep, "Keep so many that were saved last, and latest")
      ->required()
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}));
  commands.back()
      .app->add_option("--keep-every", arguments.keep_every, "Also keep those whose step is a multiple of K")
      ->type_name("K")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 62));
  commands.back().app->add_flag("--dry-run", arguments.dry_run,
                                "Remove nothing, print what would be removed");
  commands.push_back(add(app, arguments, "export", "Write the weights as a Hugging Face folder (safetensors)",
                         "CHECKPOINT_AND_OUT", 2, run_export));
  add_tag(commands.back().app, "Which checkpoint of the folder");
  commands.back()
      .app->add_option("--dtype", arguments.dtype, "Of floating-point tensors: fp32, bf16 or fp16")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  commands.back()
      .app
      ->add_option("--max-shard-size", arguments.max_shard_size,
                   "Bytes of a file's tensors: 5GB, 500MB, 2GiB")
      ->capture_default_str();
  commands.push_back(add(app, arguments, "import", "Take over a checkpoint that DeepSpeed wrote",
                         "DEEPSPEED_AND_OUT", 2, run_import));
  add_tag(commands.back().app, "The new checkpoint's name; DeepSpeed's if not given");
  commands.back().app->add_flag("--replace", arguments.replace, "Replace a checkpoint of this name");
  return commands;
}

}  // namespace

int run_checkpoint_command(int argc, const char* const* argv) {
  CheckpointArguments arguments;
  CLI::App app("Looks at checkpoints, and takes them to and from other programs.", "zerorun checkpoint");
  app.footer(kCheckpointFooter);
  app.require_subcommand(1);
  const std::vector<Command> commands = add_commands(app, arguments);
  if (!parse_or_help(app, argc, argv)) return kEqual;
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run(arguments);
  }
  return kEqual;
}

}  // namespace zerorun::launcher
