// Reads a rank's place in its job from the environment variables of srun, OpenMPI's mpirun or MPICH's
// mpiexec, for programs that one of these starts without `zerorun` or torchrun. Results depend only on the
// arguments. Any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "comm/meeting/variables.h"

namespace zerorun {

/// Where a rank is, and where the ranks meet.
struct ClusterRank {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  std::string job;  // identifies the job: all of its ranks have the same text; empty: not known
};

/// Facts about this host that are not in environment variables.
struct HostFacts {
  /// Whether `address` is an address of this host.
  std::function<bool(const std::string& address)> has_address;
  /// Returns the PID of the process that created the socket pair to which the inherited `descriptor` belongs;
  /// 0 if `descriptor` is not such a socket.
  std::function<int(int descriptor)> maker_of_socket;

  static HostFacts of_this_host();
};

/// Returns nothing if none of these launchers has started this process, or if an sbatch script has started it
/// without srun. MASTER_ADDR and MASTER_PORT, if set, are used instead of the launcher's values. Throws
/// UserError naming the variable that is malformed, contradicts another one, or must be set.
std::optional<ClusterRank> read_cluster_rank(const Variables& variables, const HostFacts& host);

/// Throws UserError if a launcher that ZeroRun does not know has started this process as one of several. For
/// processes whose place no other variable tells: each would be rank 0 of 1.
void refuse_unknown_launcher(const Variables& variables);

/// Returns a text that identifies Slurm's job, step and restart; empty outside of a Slurm job.
std::string name_of_slurm_job(const Variables& variables);

}  // namespace zerorun
