#include "comm/meeting/cluster_environment.h"

#include <sys/socket.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <numeric>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/route.h"
#include "base/seal.h"
#include "comm/meeting/slurm_lists.h"

namespace zerorun {
namespace {

// The range of ports that are derived from a job's name. It avoids port 29500, which torchrun and DeepSpeed
// use, and the ports from 32768 on, which Linux gives to outgoing connections by default.
constexpr int kFirstPort = 20000;
constexpr int kPorts = 8000;
// The port that is used if nothing distinguishes this job from others. torchrun and DeepSpeed have the same
// default.
constexpr int kUsualPort = 29500;
constexpr int kMaxNumber = 0x7fffffff;
// Slurm's steps from this one on are no steps that srun has started for a program, such as the shell of an
// interactive allocation: what is started there is one rank.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

// The names of one launcher's variables.
struct Names {
  const char* launcher;  // for messages
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  const char* option;  // for messages: how to set MASTER_ADDR for all ranks
};

constexpr Names kSlurm = {"srun",
                          "SLURM_PROCID",
                          "SLURM_STEP_NUM_TASKS",
                          "SLURM_LOCALID",
                          "SLURM_STEP_TASKS_PER_NODE",
                          "export MASTER_ADDR=HOST before srun"};
constexpr Names kOpenMpi = {"mpirun",
                            "OMPI_COMM_WORLD_RANK",
                            "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE",
                            "mpirun -x MASTER_ADDR=HOST"};
constexpr Names kMpich = {"mpiexec",         "PMI_RANK",        "PMI_SIZE",
                          "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpiexec -genv MASTER_ADDR HOST"};

std::string required_of(const Variables& variables, const Names& names, const std::string& name) {
  if (auto value = variables.find(name)) return *value;
  throw UserError("environment variable " + name + " is not set, though " + names.rank + " of " +
                  names.launcher +
                  " is: start the program without changing these variables, or set RANK, WORLD_SIZE, "
                  "LOCAL_RANK, MASTER_ADDR and MASTER_PORT");
}

int number(const Variables& variables, const Names& names, const char* name, int lowest, int highest) {
  return whole_number(name, required_of(variables, names, name), lowest, highest);
}

[[noreturn]] void refuse(const std::string& name, const std::string& value, const std::string& reason) {
  throw UserError("environment variable " + name + "=" + value + ": " + reason);
}

int port_of(const std::string& job) {
  return kFirstPort + static_cast<int>(sip_hash(0, 0, job) % kPorts);
}

// Reads the rank and the world size. The other fields keep their defaults.
ClusterRank read_rank(const Variables& variables, const Names& names) {
  ClusterRank place;
  place.world_size = number(variables, names, names.world_size, 1, kMaxRanks);
  place.rank = number(variables, names, names.rank, 0, place.world_size - 1);
  return place;
}

void read_local_rank(const Variables& variables, const Names& names, ClusterRank& place) {
  place.local_world_size = number(variables, names, names.local_world_size, 1, place.world_size);
  place.local_rank = number(variables, names, names.local_rank, 0, place.local_world_size - 1);
}

bool on_one_host(const ClusterRank& place) {
  return place.local_world_size == place.world_size;
}

std::optional<ClusterRank> read_openmpi(const Variables& variables, const HostFacts& host) {
  if (!variables.has(kOpenMpi.rank)) return std::nullopt;
  ClusterRank place = read_rank(variables, kOpenMpi);
  read_local_rank(variables, kOpenMpi, place);
  // OpenMPI 4 and 5 set PMIX_NAMESPACE. Only OpenMPI 4 sets OMPI_MCA_orte_precondition_transports, to a
  // random value.
  const auto job = variables.find("PMIX_NAMESPACE");
  if (job) {
    place.job =
        "openmpi " + *job + " " + variables.find("OMPI_MCA_orte_precondition_transports").value_or("");
  }
  place.master_port = job ? port_of(place.job) : kUsualPort;
  if (on_one_host(place) || variables.has("MASTER_ADDR")) return place;

  // The addresses of mpirun, such as "125042688.0;tcp://192.0.2.2,198.51.100.1:52481;tcp6://[fd00::2]:38633".
  const std::string uri = variables.find("OMPI_MCA_orte_hnp_uri").value_or("");
  const size_t tcp = uri.find("tcp://");
  place.master_addr =
      tcp == std::string::npos ? "" : uri.substr(tcp + 6, uri.find_first_of(",:;", tcp + 6) - tcp - 6);
  const std::string remedy = std::string(": name the host of rank 0 with `") + kOpenMpi.option +
                             "` (MASTER_PORT likewise, if the port " + std::to_string(place.master_port) +
                             " is taken)";
  if (place.master_addr.empty()) {
    throw UserError(
        "mpirun has started ranks on several hosts, but its variables do not say where rank 0 is" + remedy);
  }
  if (place.rank == 0 && !host.has_address(place.master_addr)) {
    throw UserError("mpirun has started ranks on several hosts, but rank 0 is not on mpirun's own host " +
                    place.master_addr + " (OMPI_MCA_orte_hnp_uri), where the others look for it" + remedy);
  }
  return place;
}

// Slurm's PMI also sets PMI_RANK, but not MPI_LOCALRANKID. In that case this function returns nothing, and
// the caller reads Slurm's own variables.
std::optional<ClusterRank> read_mpich(const Variables& variables, const HostFacts& host) {
  if (!variables.has(kMpich.rank) || !variables.has(kMpich.local_rank)) return std::nullopt;
  ClusterRank place = read_rank(variables, kMpich);
  read_local_rank(variables, kMpich, place);
  place.master_port = kUsualPort;
  if (on_one_host(place)) {
    // No variable names the job. But in each rank PMI_FD is a socket, and one process of mpiexec has made the
    // sockets of all ranks. So the PID of that process identifies the job.
    const auto descriptor = variables.find("PMI_FD");
    const int maker =
        descriptor ? host.maker_of_socket(whole_number("PMI_FD", *descriptor, 0, kMaxNumber)) : 0;
    if (maker > 0) {
      place.job = "mpiexec " + std::to_string(maker);
      place.master_port = kFirstPort + maker % kPorts;
    }
  } else if (!variables.has("MASTER_ADDR")) {
    throw UserError(std::string("mpiexec has started ranks on several hosts, but its variables do not say "
                                "where rank 0 is: name its host with `") +
                    kMpich.option + "` (MASTER_PORT likewise, if the port " + std::to_string(kUsualPort) +
                    " is taken)");
  }
  return place;
}

// Slurm's numbers have 32 bits.
int64_t wide_number(const Variables& variables, const char* name) {
  const std::string text = required_of(variables, kSlurm, name);
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    refuse(name, text, "expected a whole number from 0 to 4294967295");
  return value;
}

template <typename Expand>
auto slurm_list(const Variables& variables, const char* name, const char* example, Expand expand) {
  const std::string text = required_of(variables, kSlurm, name);
  auto list = expand(text);
  if (!list) refuse(name, text, std::string("expected a list such as ") + example);
  return std::move(*list);
}

// A batch script has SLURM_PROCID and SLURM_NTASKS too; only a step that srun has started has SLURM_STEP_*.
std::optional<ClusterRank> read_slurm(const Variables& variables) {
  if (!variables.has(kSlurm.rank) || !variables.has(kSlurm.world_size)) return std::nullopt;
  const int64_t step = wide_number(variables, "SLURM_STEP_ID");
  if (step >= kFirstSpecialStep) return std::nullopt;
  if (const auto tasks = variables.find("SLURM_NTASKS");
      tasks && *tasks != required_of(variables, kSlurm, kSlurm.world_size)) {
    refuse(kSlurm.world_size, required_of(variables, kSlurm, kSlurm.world_size),
           "SLURM_NTASKS is " + *tasks +
               ", so the SLURM_STEP variables come from another step, from which this job was submitted: "
               "start the program with srun, or unset SLURM_STEP_NUM_TASKS for a single rank");
  }
  ClusterRank place = read_rank(variables, kSlurm);
  const int64_t job = wide_number(variables, "SLURM_JOB_ID");
  place.job = name_of_slurm_job(variables);
  place.master_port = kFirstPort + static_cast<int>((16 * job + step) % kPorts);

  const std::vector<int> tasks =
      slurm_list(variables, kSlurm.local_world_size, "2(x3),1", expand_task_counts);
  const auto hosts = slurm_list(variables, "SLURM_STEP_NODELIST", "gpu[01-03,7],login2", expand_host_list);
  const int64_t sum = std::accumulate(tasks.begin(), tasks.end(), int64_t{0});
  if (sum != place.world_size || tasks.size() != hosts.size()) {
    refuse(kSlurm.local_world_size, required_of(variables, kSlurm, kSlurm.local_world_size),
           std::to_string(sum) + " tasks on " + std::to_string(tasks.size()) + " hosts contradict " +
               kSlurm.world_size + "=" + std::to_string(place.world_size) + " or the " +
               std::to_string(hosts.size()) +
               " hosts of SLURM_STEP_NODELIST: start the program without changing these variables");
  }
  const int node = number(variables, kSlurm, "SLURM_NODEID", 0, static_cast<int>(hosts.size()) - 1);
  place.local_world_size = tasks[node];
  place.local_rank = number(variables, kSlurm, kSlurm.local_rank, 0, place.local_world_size - 1);
  if (on_one_host(place)) return place;
  place.master_addr = hosts.front();
  if (place.rank == 0 && node != 0 && !variables.has("MASTER_ADDR")) {
    refuse("SLURM_NODEID", std::to_string(node),
           "rank 0 is on " + hosts[node] + ", and not on " + hosts.front() +
               ", the first host of SLURM_STEP_NODELIST, where the others look for it: " + kSlurm.option +
               ", or leave --distribution=arbitrary out");
  }
  return place;
}

// Scripts may set torchrun's variables in addition to the launcher's variables. `value` follows from the
// launcher's variable `theirs`. Throws if torchrun's variable `name` is set to a different value.
void check_agrees(const Variables& variables, const char* name, int value, const char* theirs) {
  const auto text = variables.find(name);
  if (!text || *text == std::to_string(value)) return;
  refuse(
      name, *text,
      std::string("contradicts ") + theirs + ", which makes it " + std::to_string(value) + ": unset " + name +
          ", or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, which then take precedence");
}

void take_given_address(const Variables& variables, const Names& names, ClusterRank& place) {
  if (const auto address = variables.find("MASTER_ADDR")) place.master_addr = *address;
  if (const auto port = variables.find("MASTER_PORT")) {
    place.master_port = whole_number("MASTER_PORT", *port, 1, 65535);
  }
  if (!on_one_host(place) && is_loopback(place.master_addr)) {
    refuse("MASTER_ADDR", place.master_addr,
           std::string("the ranks are on several hosts, and each would look for rank 0 on its own: ") +
               names.option + " with the host of rank 0");
  }
}

// Variables by which launchers number their ranks. SLURM_NTASKS is not among the sizes: a batch script, which
// is one process, has it too.
constexpr std::array kRankVariables = {
    "PMI_RANK",    "PMIX_RANK",   "MV2_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID",
    "PALS_RANKID", "ALPS_APP_PE", "FLUX_TASK_RANK",      "JSM_NAMESPACE_RANK",   "HOROVOD_RANK"};
constexpr std::array kSizeVariables = {"PMI_SIZE",           "MV2_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE",
                                       "JSM_NAMESPACE_SIZE", "HOROVOD_SIZE",        "FLUX_JOB_SIZE"};

}  // namespace

void refuse_unknown_launcher(const Variables& variables) {
  const auto check = [&](const char* name, int alone) {
    const std::string text = variables.find(name).value_or("");
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value <= alone) return;
    refuse(
        name, text,
        std::string(
            "a launcher that ZeroRun does not know has started this process as one of several, and each "
            "would train alone: start the program with zerorun, torchrun, srun, OpenMPI's mpirun or MPICH's "
            "mpiexec, or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in each process; if "
            "it is to train alone, unset ") +
            name);
  };
  for (const char* name : kRankVariables) check(name, 0);
  for (const char* name : kSizeVariables) check(name, 1);
  // A step of srun whose ranks have lost their numbers on the way, for example in a container.
  if (!variables.has(kSlurm.rank)) check(kSlurm.world_size, 1);
}

HostFacts HostFacts::of_this_host() {
  HostFacts facts;
  facts.has_address = [](const std::string& address) {
    try {
      const Route route = route_to(address);
      return route.local == route.remote;
    } catch (const CommError&) {
      return false;
    }
  };
  facts.maker_of_socket = [](int descriptor) {
    ucred maker{};
    socklen_t size = sizeof maker;
    return getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &maker, &size) == 0 ? maker.pid : 0;
  };
  return facts;
}

std::optional<ClusterRank> read_cluster_rank(const Variables& variables, const HostFacts& host) {
  // In a Slurm job, mpirun and mpiexec start their helpers with srun, so their ranks have Slurm's variables
  // too. Therefore Slurm's variables are read last.
  const Names* names = &kOpenMpi;
  auto place = read_openmpi(variables, host);
  if (!place) {
    names = &kMpich;
    place = read_mpich(variables, host);
  }
  if (!place) {
    names = &kSlurm;
    place = read_slurm(variables);
  }
  if (!place) return place;
  check_agrees(variables, "WORLD_SIZE", place->world_size, names->world_size);
  check_agrees(variables, "LOCAL_RANK", place->local_rank, names->local_rank);
  check_agrees(variables, "LOCAL_WORLD_SIZE", place->local_world_size, names->local_world_size);
  take_given_address(variables, *names, *place);
  return place;
}

std::string name_of_slurm_job(const Variables& variables) {
  const auto job = variables.find("SLURM_JOB_ID");
  if (!job) return "";
  return "slurm " + *job + " " + variables.find("SLURM_STEP_ID").value_or("") + " " +
         variables.find("SLURM_RESTART_COUNT").value_or("");
}

}  // namespace zerorun
