// Turns the launcher's order for one host into the plan of a Job. Used on the main thread of the launcher or
// of an agent.
#pragma once

#include "base/listening.h"
#include "launcher/hosts/job_placement.h"
#include "launcher/hosts/node_order.h"
#include "launcher/job.h"
#include "launcher/rank_environment.h"

namespace zerorun::launcher {

/// Whether ranks with this --device train on GPUs where there are any.
bool gpus_wanted(const std::string& device);

/// This machine as the ranks of a job with this --device see it.
ThisMachine inspect_machine(const std::string& device);

/// Reserves the port where the ranks meet: on `address` if the job has one host or `address` is a loopback
/// address, else on all interfaces. Does not listen yet: in rank 0, the engine or the program's own
/// torch.distributed starts to listen, whichever comes first. Throws UserError.
ListeningSocket open_meeting_point(const std::string& address, int port, bool one_host);

/// The variables that the ranks of this host have in common. Throws UserError naming a GPU that this host
/// does not have.
JobEnvironment node_environment(const NodeOrder& order, const MeetingPoint& point, const ThisMachine& machine,
                                int listening_fd);

/// Changes into the order's folder and finds the program there. `listening`: the socket for rank 0, if it
/// runs here. Throws UserError naming a folder, program or GPU that this host does not have.
JobPlan plan_node(const NodeOrder& order, const MeetingPoint& point, const ThisMachine& machine,
                  UniqueFd listening);

/// The environment variables of this process, without the ticket.
std::vector<std::string> inherited_environment();

/// The environment that ranks of this host start from: this process's, with the variables that the launcher
/// forwards, which take precedence.
std::vector<std::string> inherited_by_ranks(const NodeOrder& order);

}  // namespace zerorun::launcher
