// How the launcher of this host takes part in the job.
#pragma once

#include "launcher/hosts/host_name.h"
#include "launcher/hosts/job_placement.h"
#include "launcher/hosts/launch_options.h"

namespace zerorun::launcher {

inline constexpr char kThisHost[] = "127.0.0.1";

enum class Part {
  alone,   // all ranks run here
  starts,  // starts agents on the job's hosts
  first,   // the user has started a launcher on each host: this one waits for the others
  joins,   // the user has started a launcher on each host: this one joins the first one
};

/// The address and port where the launchers meet, if the user has started one on each host.
Endpoint choose_endpoint(const LaunchOptions& options, const Placement& placement);

Part choose_part(const LaunchOptions& options, const JobPlacement& place, const Endpoint& endpoint);

/// Throws UserError for options about restarts that this part of the job, on so many nodes, does not have.
void check_restarts(const LaunchOptions& options, Part part, int nodes);

}  // namespace zerorun::launcher
