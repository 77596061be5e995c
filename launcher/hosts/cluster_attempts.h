// Runs a job on several hosts, and after failures again (--max_restarts). Called once, on the main thread.
#pragma once

#include <functional>
#include <set>

#include "launcher/hosts/cluster.h"
#include "launcher/hosts/launch_options.h"

namespace zerorun::launcher {

/// Makes the plan of an attempt, given the number of restarts so far and the nodes that are left out.
using MakePlan = std::function<ClusterPlan(int restarts, const std::set<int>& left_out)>;

/// `argc` and `argv` are main's. Returns the launcher's exit code; throws UserError or Error.
int run_attempts(const LaunchOptions& options, const MakePlan& make_plan, int argc, char** argv);

}  // namespace zerorun::launcher
