// The command line of a benchmark.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/program.h"

namespace zerorun {

/// Parses the arguments and calls `body`, as run_program() does. Returns the program's exit code, which is 2
/// if the arguments are wrong.
inline int parse_and_run(CLI::App& app, int argc, char** argv, const std::function<int()>& body) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return run_program(body);
}

}  // namespace zerorun
