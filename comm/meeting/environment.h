// A rank's settings from torchrun's environment variables, which `zerorun` sets too, or else from those of
// srun, mpirun or mpiexec. Plain values; any thread.
#pragma once

#include <chrono>
#include <string>

namespace zerorun {

class Variables;
struct HostFacts;

/// The device that the ranks of a job train on.
enum class DeviceChoice {
  automatic,  // GPUs where there are any that ZeroRun can use, else the CPU
  cpu,
  cuda,  // GPUs, or an error
};

/// The transport of collectives between ranks on CPUs.
enum class CommChoice {
  automatic,      // shared memory where all ranks are on one host, else Gloo
  shared_memory,  // shared memory, or an error
  two_levels,  // shared memory within the hosts that LOCAL_WORLD_SIZE gives, Gloo between them, or an error
  gloo,        // Gloo between all ranks
};

/// The values of RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
/// TORCHELASTIC_USE_AGENT_STORE, ZERORUN_TIMEOUT (seconds), ZERORUN_DEVICE (auto, cpu, cuda) and
/// ZERORUN_COMM (auto, shm, two-level, gloo). If RANK is not set, the variables of the cluster's launcher are
/// used (comm/meeting/cluster_environment.h); if these are not set either, there is one rank. The job is
/// identified by ZERORUN_JOB, else by torchrun's run id, else by the cluster's job, if any of them is set.
struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // index among the ranks of this machine, from 0; also selects the rank's GPU
  int local_world_size = 1;  // number of ranks of this machine
  DeviceChoice device = DeviceChoice::automatic;
  CommChoice comm = CommChoice::automatic;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  std::string job;            // identifies the job: all of its ranks have the same text; empty: not known
  bool one_host = true;       // all ranks are known to be on this machine
  bool agent_store = false;   // torchrun's agent keeps the store: rank 0 joins it as a client
  std::string attempt = "0";  // the number of times that torchrun's agent has restarted the ranks
  std::chrono::milliseconds timeout = std::chrono::minutes(10);

  /// Throws UserError naming the variable that is missing, malformed or contradicts others.
  static Environment read();
  static Environment read(const Variables& variables, const HostFacts& host);
};

}  // namespace zerorun
