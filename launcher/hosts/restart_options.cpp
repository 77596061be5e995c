#include "launcher/hosts/restart_options.h"

#include <CLI/CLI.hpp>

#include "launcher/hosts/option_checks.h"

namespace zerorun::launcher {
namespace {

constexpr int kMostSteps = 1'000'000;  // of --hold_every

}  // namespace

void RestartValues::add_to(CLI::App& app, LaunchOptions& options) {
  CLI::Option* restarts =
      app.add_option("--max_restarts,--max-restarts", most,
                     "After a failure start all ranks again, at most N times; without it 0")
          ->type_name("N")
          ->check(checks::whole_number(0, kMostRanks));
  app.add_option("--hold_every,--hold-every", hold_every,
                 "Hold the state of each Nth optimizer step in memory, for load_newest() after a restart")
      ->type_name("N")
      ->check(checks::whole_number(1, kMostSteps))
      ->needs(restarts);
  CLI::Option* fewest =
      app.add_option(
             "--min_nodes,--min-nodes", min_nodes,
             "A restart leaves out hosts that cannot be reached, if N are left; without it all are needed")
          ->type_name("N")
          ->check(checks::whole_number(1, kMostRanks))
          ->needs(restarts);
  app.add_option("--host_wait,--host-wait", options.host_wait_seconds,
                 "How long such a restart waits for a host; without it 30 s")
      ->type_name("SECONDS")
      ->check(checks::seconds(0, true, kLongestTimeout))
      ->needs(fewest);
  app.add_option(
         "--hung_after,--hung-after", options.hung_after_seconds,
         "A rank without progress, for which others wait, is ended after this time; without it --timeout")
      ->type_name("SECONDS")
      ->check(checks::seconds(0, false, kLongestTimeout));
}

void RestartValues::read(LaunchOptions& options) const {
  options.max_restarts = whole_number_in(most).value_or(0);
  options.hold_every = whole_number_in(hold_every).value_or(0);
  options.min_nodes = whole_number_in(min_nodes).value_or(0);
}

}  // namespace zerorun::launcher
