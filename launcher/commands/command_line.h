// Reads the arguments of `zerorun COMMAND`. Called once from main, in its thread.
#pragma once

namespace CLI {
class App;
}

namespace zerorun::launcher {

/// Reads the arguments behind the command, of which `app` has the name ("zerorun diff"). Prints the help and
/// returns false if it is asked for. Throws UserError for a mistake.
bool parse_or_help(CLI::App& app, int argc, const char* const* argv);

}  // namespace zerorun::launcher
