// The options of `zerorun` about failures: which count as one, and what follows.
#pragma once

#include <string>

#include "launcher/hosts/launch_options.h"

namespace CLI {
class App;
}

namespace zerorun::launcher {

/// Numbers as texts: the parser that checks them reads them too.
struct RestartValues {
  std::string most, hold_every, min_nodes;

  /// `options` and this object must outlive the parsing.
  void add_to(CLI::App& app, LaunchOptions& options);
  /// Sets what has been parsed.
  void read(LaunchOptions& options) const;
};

}  // namespace zerorun::launcher
