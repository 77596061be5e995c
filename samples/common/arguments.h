// The flags that every DeepSpeed program takes. Wrong flags throw UserError. Owned by a program's main(); one
// thread.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

namespace zerorun {

/// `--deepspeed FILE`, or `--deepspeed --deepspeed_config FILE`; `--local_rank=N` is accepted and ignored
/// (LOCAL_RANK has the same value).
struct DeepspeedFlags {
  std::string deepspeed;
  std::string deepspeed_config;
  int local_rank = 0;

  void add_to(CLI::App& app);
  /// The path of the ds_config.json. Throws UserError if the flags name none, or two.
  std::filesystem::path config_file() const;
};

/// The folder of an output file: "." for a bare file name; empty if `file` is empty.
std::filesystem::path folder_of(const std::filesystem::path& file);

/// Parses the command line. Returns false if --help was given, which rank 0 then has printed. Throws
/// UserError.
bool parse_arguments(CLI::App& app, int argc, char** argv);

}  // namespace zerorun
