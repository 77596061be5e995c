// A rank's place in its job from the variables of srun, OpenMPI's mpirun or MPICH's mpiexec, for programs
// that these start without `zerorun` or torchrun. Pure on what it is given; any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "comm/variables.h"

namespace zerorun {

/// Where a rank is, and where the ranks meet.
struct ClusterRank {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  std::string job;  // the same on all ranks of the job and on no others; empty: not known
};

/// What this host says, beside the variables.
struct HostFacts {
  /// Whether `address` is one of this host's own.
  std::function<bool(const std::string& address)> has_address;
  /// The process that made the socket pair of which this process has inherited `descriptor`; 0 if none.
  std::function<int(int descriptor)> maker_of_socket;

  static HostFacts of_this_host();
};

/// Nothing if no such launcher has started this process; a program in an sbatch script that srun does not
/// start is none either. MASTER_ADDR and MASTER_PORT, where set, are taken as they are. Throws UserError
/// naming the variable that is malformed or contradicts another one, or what must be set.
std::optional<ClusterRank> read_cluster_rank(const Variables& variables, const HostFacts& host);

/// Slurm's job and step; empty outside of a job.
std::string name_of_slurm_job(const Variables& variables);

}  // namespace zerorun
