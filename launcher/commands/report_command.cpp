#include "launcher/commands/report_command.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "launcher/commands/command_line.h"
#include "launcher/print.h"
#include "monitor/whole_file.h"
#include "report/page.h"

namespace zerorun::launcher {
namespace {

constexpr char kReportFooter[] =
    R"(RUN and RUN2 are folders that zerorun.run_log.path names in ds_config.json. The page is one file that any browser opens
and that loads nothing: curves of the steps, memory, elements sent, the configuration, ranks and hosts, failures. Of two runs
it shows both, and the first step at which they part, as zerorun diff finds it. A run that goes on may be reported too.

Examples:
  zerorun report runs/a                          writes report.html
  zerorun report runs/a runs/b --output ab.html  two runs

Exit code: 0; 2 if a log cannot be read, or for a mistake on this command line.)";

}  // namespace

int run_report_command(int argc, const char* const* argv) {
  std::vector<std::filesystem::path> runs;
  std::filesystem::path output = "report.html";
  CLI::App app("Writes a page that shows one or two runs.", "zerorun report");
  app.footer(kReportFooter);
  app.add_option("RUNS", runs, "The folder of a run log, or two of them")->required()->expected(1, 2);
  app.add_option("--output", output, "The page's file (report.html)")->type_name("FILE");
  if (!parse_or_help(app, argc, argv)) return 0;
  const std::string page = report_page(runs);
  write_whole_file(output, page, "--output");
  print("report: " + output.string() + ", " + std::to_string(page.size() / 1000) + " kB\n");
  return 0;
}

}  // namespace zerorun::launcher
