#include "launcher/commands/command_line.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/hosts/option_checks.h"
#include "launcher/print.h"

namespace zerorun::launcher {
namespace {

// Throws UserError if the command has subcommands, and `word` is none of them.
void check_subcommand(CLI::App& app, const std::string& command, const std::string& word,
                      const std::string& see_help) {
  const std::vector<CLI::App*> subcommands = app.get_subcommands({});
  std::string expected;
  for (const CLI::App* subcommand : subcommands) {
    if (subcommand->get_name() == word) return;
    const bool last = subcommand == subcommands.back();
    expected += (expected.empty() ? "" : last ? " or " : ", ") + subcommand->get_name();
  }
  if (!subcommands.empty())
    throw UserError(command + ": expected " + expected + ", found " + word + see_help);
}

}  // namespace

bool parse_or_help(CLI::App& app, int argc, const char* const* argv) {
  const std::string see_help = " (see " + app.get_name() + " --help)";
  if (argc > 2 && argv[2][0] != '-') check_subcommand(app, argv[1], argv[2], see_help);
  try {
    app.parse(argc - 1, argv + 1);
    return true;
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw UserError(describe_mistake(error) + see_help);
  }
}

}  // namespace zerorun::launcher
