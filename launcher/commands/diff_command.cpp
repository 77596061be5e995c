#include "launcher/commands/diff_command.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "launcher/commands/command_line.h"
#include "launcher/print.h"
#include "monitor/run_comparison.h"

namespace zerorun::launcher {
namespace {

constexpr int kSame = 0;
constexpr int kPart = 1;

constexpr char kFooter[] =
    R"(A and B are folders that zerorun.run_log.path names in ds_config.json. With zerorun.run_log.hashes in both, runs are
compared parameter by parameter, though stage, bucket sizes, transport and the home of states differ. With another number
of ranks, another precision, or stages 0-1 against 2-3 with accumulation, bits cannot be equal: then losses and norms are
compared within a tolerance, 1e-5 for fp32 and 1e-2 for 16 bits, ten times that for norms.

Examples:
  zerorun diff runs/a runs/b                     the first step at which they part, and what differs in it
  zerorun diff runs/a runs/b --tolerance 1e-4    of two runs whose bits cannot be equal

Exit code: 0 no difference; 1 they part; 2 they cannot be compared, or a mistake on this command line.)";

}  // namespace

int run_diff_command(int argc, const char* const* argv) {
  std::vector<std::string> runs;
  std::optional<double> tolerance;
  CLI::App app("Finds the first step and parameter at which two runs part.", "zerorun diff");
  app.footer(kFooter);
  app.add_option("RUNS", runs, "The folders of two run logs, A and B")->required()->expected(2);
  app.add_option("--tolerance", tolerance,
                 "Relative difference of losses that counts as none, if bits cannot be equal")
      ->type_name("NUMBER");
  if (!parse_or_help(app, argc, argv)) return kSame;
  if (tolerance && !(*tolerance >= 0 && std::isfinite(*tolerance)))
    throw UserError("--tolerance: expected a number of at least 0 (see zerorun diff --help)");
  const RunComparison comparison = compare_runs(runs.at(0), runs.at(1), {.tolerance = tolerance});
  print(to_text(comparison, runs.at(0), runs.at(1)));
  return comparison.parting ? kPart : kSame;
}

}  // namespace zerorun::launcher
