// The hosts that a job may use: DeepSpeed's hostfile, one line `HOST slots=N` per host.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/launch_options.h"

namespace zerorun::launcher {

struct Host {
  std::string name;
  int slots = 0;  // the largest number of ranks on it; with GPUs, the number of its GPUs

  bool operator==(const Host&) const = default;
};

/// The highest number of slots that a host can have.
inline constexpr int kMostSlots = 4096;

/// Parses `text`, the content of `file`: lines `HOST slots=N`, after which more words may follow; `#` starts
/// a comment, and empty lines are skipped. Throws UserError naming file and line, also if there is no host.
std::vector<Host> parse_hostfile(std::string_view text, const std::string& file);

/// The hostfile that DeepSpeed's launcher reads if none is given.
inline constexpr char kUsualHostfile[] = "/job/hostfile";

/// The hostfile of a job: that of --hostfile, else `usual` if that is a file, unless the options say that the
/// job is on this host alone (--standalone and others) or that the user starts a launcher on each host.
/// Empty: none.
std::string choose_hostfile(const LaunchOptions& options, const std::string& usual = kUsualHostfile);

/// Reads and parses `file`. Throws UserError if it cannot be read.
std::vector<Host> read_hostfile(const std::string& file);

}  // namespace zerorun::launcher
