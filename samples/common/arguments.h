// The flags that every DeepSpeed program takes. Wrong flags throw UserError. Owned by a program's main() and
// used by one thread.
#pragma once

#include <filesystem>
#include <string>

namespace CLI {
class App;
}

namespace samples {

/// `--deepspeed FILE`, or `--deepspeed --deepspeed_config FILE`; `--local_rank=N` is accepted and ignored
/// (LOCAL_RANK has the same value).
struct DeepspeedFlags {
  std::string deepspeed;
  std::string deepspeed_config;
  int local_rank = 0;

  void add_to(CLI::App& app);
  /// The path of the ds_config.json. Throws UserError if the flags name no file, or two different files.
  std::filesystem::path config_file() const;
};

/// The folder of an output file: "." for a bare file name; empty if `file` is empty.
std::filesystem::path folder_of(const std::filesystem::path& file);

/// Parses the command line. If --help is given, rank 0 prints the help and every rank returns false. Throws
/// UserError for wrong flags.
bool parse_arguments(CLI::App& app, int argc, char** argv);

}  // namespace samples
