// The flags that every DeepSpeed program takes, and wrong flags as UserErrors. Owned by a program's main();
// one thread.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

namespace zerorun {

/// `--deepspeed FILE`, or `--deepspeed --deepspeed_config FILE`; `--local_rank=N` is taken and ignored
/// (LOCAL_RANK says the same).
struct DeepspeedFlags {
  std::string deepspeed;
  std::string deepspeed_config;
  int local_rank = 0;

  void add_to(CLI::App& app);
  /// The ds_config.json that was named. Throws UserError.
  std::filesystem::path config_file() const;
};

/// Where an output goes that is named by a flag: "." for a bare file name; empty if `file` is.
std::filesystem::path folder_of(const std::filesystem::path& file);

/// Parses the command line. False: --help was asked for and has been printed. Throws UserError.
bool parse_arguments(CLI::App& app, int argc, char** argv);

}  // namespace zerorun
