// Parses the command line of `zerorun`. Pure: does not inspect the machine or print.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace zerorun {

struct LaunchOptions {
  std::optional<int> ranks;  // --num_gpus
  std::string include;       // --include, unparsed; empty if not given
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;  // none: a free one
  std::string device;              // --device: auto, cpu or cuda; empty if not given
  std::string comm;                // --comm: auto, shm or gloo; empty if not given
  double timeout_seconds = 600;
  std::chrono::milliseconds grace{3000};
  std::vector<std::string> command;  // the program and its arguments, untouched
};

/// The text that the user requests with --help or --version instead of a job.
struct Information {
  std::string text;
};

/// Throws UserError.
std::variant<LaunchOptions, Information> parse_launch_options(int argc, const char* const* argv);

}  // namespace zerorun
