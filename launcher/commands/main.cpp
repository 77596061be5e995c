// zerorun: starts the ranks of a training job and supervises them until the last one has ended. `zerorun
// config` handles configurations, `zerorun checkpoint` handles checkpoints, `zerorun doctor` checks hosts and
// the links between them, `zerorun plan` says what a training will take, `zerorun diff` where two runs part,
// `zerorun report` makes a page about them.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <variant>

#include "base/error.h"
#include "base/printable.h"
#include "launcher/commands/checkpoint_command.h"
#include "launcher/commands/config_command.h"
#include "launcher/commands/diff_command.h"
#include "launcher/commands/doctor_command.h"
#include "launcher/commands/plan_command.h"
#include "launcher/commands/report_command.h"
#include "launcher/hosts/agent.h"
#include "launcher/hosts/gpu_question.h"
#include "launcher/hosts/keeper.h"
#include "launcher/hosts/launch.h"
#include "launcher/hosts/launch_options.h"

namespace launcher = zerorun::launcher;

namespace {

constexpr int kFailure = 1;
constexpr int kUserMistake = 2;

int tell(const std::exception& error, int exit_code) {
  std::fprintf(stderr, "zerorun: %s\n", zerorun::printable(error.what(), "\n\t").c_str());
  return exit_code;
}

// The exit code of a command that has printed to stdout. stdio may have noticed a full disk before the flush.
int flushed(int exit_code) {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written) return exit_code;
  std::fprintf(stderr, "zerorun: the output could not be written: %s\n", std::strerror(errno));
  return kFailure;
}

struct Command {
  std::string_view name;
  int (*run)(int argc, const char* const* argv);
};

constexpr Command kCommands[] = {{"config", launcher::run_config_command},
                                 {"checkpoint", launcher::run_checkpoint_command},
                                 {"diff", launcher::run_diff_command},
                                 {"report", launcher::run_report_command},
                                 {"doctor", launcher::run_doctor_command}};

}  // namespace

int main(int argc, char** argv) {
  try {
    if (launcher::is_gpu_question(argc, argv)) return flushed(launcher::run_gpu_question(argc, argv));
    if (launcher::is_agent_command(argc, argv)) return launcher::run_agent_command(argc, argv);
    if (launcher::is_keeper_command(argc, argv)) return launcher::run_keeper_command(argc, argv);
    const std::string_view name = argc > 1 ? argv[1] : "";
    if (name == "plan") launcher::run_plan_command(argc, argv);
    for (const Command& command : kCommands) {
      if (name == command.name) return flushed(command.run(argc, argv));
    }
    auto parsed = launcher::parse_launch_options(argc, argv);
    if (const auto* information = std::get_if<launcher::Information>(&parsed)) {
      std::fputs(information->text.c_str(), stdout);
      return flushed(0);
    }
    const auto& options = std::get<launcher::LaunchOptions>(parsed);
    const int exit_code = launcher::launch(options, argc, argv);
    return options.dry_run ? flushed(exit_code) : exit_code;
  } catch (const zerorun::UserError& error) {
    return tell(error, kUserMistake);
  } catch (const std::exception& error) {
    return tell(error, kFailure);
  }
}
