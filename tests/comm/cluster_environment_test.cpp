// Tests how a rank reads its environment from the variables of srun, mpirun and mpiexec. The tables contain
// the variables that Slurm 22.05, OpenMPI 4.1 and MPICH 4.0 of Debian 12 set.
#include "comm/meeting/cluster_environment.h"

#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <clocale>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/meeting/environment.h"
#include "comm/meeting/slurm_lists.h"
#include "tests/support/temporary_folder.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Table = std::map<std::string, std::string>;
using Hosts = std::vector<std::string>;

// The variables of rank 2 in step 0 of job 1. The step has 3 ranks on two nodes.
const Table kSlurm = {
    {"SLURM_PROCID", "2"},           {"SLURM_NTASKS", "3"},         {"SLURM_LOCALID", "0"},
    {"SLURM_NODEID", "1"},           {"SLURM_JOB_ID", "1"},         {"SLURM_JOB_NODELIST", "gpu[01-02]"},
    {"SLURM_TASKS_PER_NODE", "2,1"}, {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NODELIST", "gpu[01-02]"},
    {"SLURM_STEP_NUM_NODES", "2"},   {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_STEP_TASKS_PER_NODE", "2,1"}};

const Table kBatch = {{"SLURM_PROCID", "0"},          {"SLURM_NTASKS", "4"},
                      {"SLURM_LOCALID", "0"},         {"SLURM_NODEID", "0"},
                      {"SLURM_JOB_ID", "2"},          {"SLURM_JOB_NODELIST", "gpu[01-02]"},
                      {"SLURM_TASKS_PER_NODE", "3,1"}};

const Table kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_MCA_orte_hnp_uri", "125042688.0;tcp://192.0.2.2,198.51.100.1:52481;tcp6://[fd00::2]:38633"},
    {"OMPI_MCA_orte_precondition_transports", "00b0e5fb117f4fac-b08ec41ce3719c10"},
    {"PMIX_NAMESPACE", "125042689"},
    {"PMIX_RANK", "1"}};

const Table kMpich = {{"PMI_RANK", "1"},
                      {"PMI_SIZE", "2"},
                      {"PMI_FD", "8"},
                      {"MPI_LOCALRANKID", "1"},
                      {"MPI_LOCALNRANKS", "2"}};

Table with(Table table, const Table& others) {
  for (const auto& [name, value] : others) table[name] = value;
  return table;
}

Table without(Table table, const std::string& name) {
  table.erase(name);
  return table;
}

// Reads `table` on a fake host with the address 192.0.2.2. Descriptor 8 belongs to a socket pair that process
// 4321 has created.
Environment read(const Table& table) {
  const Variables variables([&](const std::string& name) -> std::optional<std::string> {
    const auto found = table.find(name);
    if (found == table.end()) return std::nullopt;
    return found->second;
  });
  HostFacts host;
  host.has_address = [](const std::string& address) { return address == "192.0.2.2"; };
  host.maker_of_socket = [](int descriptor) { return descriptor == 8 ? 4321 : 0; };
  return Environment::read(variables, host);
}

std::string refusal(const Table& table) {
  return testing::user_error([&] { read(table); });
}

}  // namespace

TEST_CASE("slurm's lists of hosts are expanded") {
  const std::map<std::string, Hosts> cases = {
      {"login2", {"login2"}},
      {"gpu[01-03,7],login2", {"gpu01", "gpu02", "gpu03", "gpu7", "login2"}},
      {"a[9-11]", {"a9", "a10", "a11"}},
      {"a[099-101]", {"a099", "a100", "a101"}},
      {"rack[1-2]n[08-09]-ib", {"rack1n08-ib", "rack1n09-ib", "rack2n08-ib", "rack2n09-ib"}},
      {"a-1,b[2,4]", {"a-1", "b2", "b4"}}};
  for (const auto& [text, hosts] : cases) {
    CAPTURE(text);
    CHECK(expand_host_list(text) == hosts);
  }
  for (const char* text : {"", ",", "a,", "a[1-2", "a1]", "a[2-1]", "a[]", "a[x]", "a[1-]", "a[-2]", "a[[1]]",
                           "a[0-4294967295]", "a[0-999999]b[0-999999]"}) {
    CAPTURE(text);
    CHECK_FALSE(expand_host_list(text));
  }
}

TEST_CASE("slurm's lists of tasks per node are expanded") {
  CHECK(expand_task_counts("3") == std::vector<int>{3});
  CHECK(expand_task_counts("2(x3),1") == std::vector<int>{2, 2, 2, 1});
  CHECK(expand_task_counts("2,1(x2)") == std::vector<int>{2, 1, 1});
  for (const char* text : {"", "2(x)", "2(x0)", "2(x3", "2(y3)", "(x3)", "2,", "x", "-1", "1(x99999999)"}) {
    CAPTURE(text);
    CHECK_FALSE(expand_task_counts(text));
  }
}

TEST_CASE("srun: a step on two nodes meets on its first node") {
  const Environment environment = read(kSlurm);
  CHECK(environment.rank == 2);
  CHECK(environment.world_size == 3);
  CHECK(environment.local_rank == 0);
  CHECK(environment.local_world_size == 1);
  CHECK(environment.master_addr == "gpu01");
  CHECK(environment.job == "slurm 1 0 ");
  CHECK_FALSE(environment.one_host);
  CHECK_FALSE(environment.agent_store);
  const Environment first =
      read(with(kSlurm, {{"SLURM_PROCID", "1"}, {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "0"}}));
  CHECK(first.local_rank == 1);
  CHECK(first.local_world_size == 2);
  CHECK(first.master_port == environment.master_port);
  CHECK(first.job == environment.job);
}

TEST_CASE("ranks of a launcher that is not known do not train alone, each as rank 0") {
  for (const char* name :
       {"PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID", "FLUX_TASK_RANK", "HOROVOD_RANK"}) {
    CAPTURE(name);
    CHECK_THAT(refusal({{name, "1"}}), Contains(std::string(name) + "=1: ") &&
                                           Contains("would train alone") &&
                                           Contains(std::string("unset ") + name));
    CHECK(read({{name, "0"}}).world_size == 1);
    CHECK(read({{name, "x"}}).world_size == 1);
    const Table known = {{name, "1"},         {"RANK", "0"},        {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
    CHECK(read(known).world_size == 2);
  }
  for (const char* name :
       {"PMI_SIZE", "MV2_COMM_WORLD_SIZE", "HOROVOD_SIZE", "FLUX_JOB_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    CHECK_THAT(refusal({{"PMI_RANK", "0"}, {name, "2"}}), Contains(std::string(name) + "=2: "));
    CHECK(read({{name, "1"}}).world_size == 1);
  }
  CHECK(read(kBatch).world_size == 1);  // SLURM_NTASKS is 4
}

TEST_CASE("slurm: the shell of an interactive allocation is one rank, and numbers have 32 bits") {
  const Table shell = with(kSlurm, {{"SLURM_STEP_ID", "4294967290"},
                                    {"SLURM_PROCID", "0"},
                                    {"SLURM_NODEID", "0"},
                                    {"SLURM_NTASKS", "8"},
                                    {"SLURM_STEP_NUM_TASKS", "1"},
                                    {"SLURM_STEP_TASKS_PER_NODE", "1"}});
  CHECK(read(shell).world_size == 1);
  const Environment large = read(with(kSlurm, {{"SLURM_JOB_ID", "3000000000"}}));
  CHECK(large.world_size == 3);
  CHECK(large.master_port >= 20000);
  CHECK(large.master_port < 28000);
  CHECK_THAT(refusal(with(kSlurm, {{"SLURM_JOB_ID", "4294967296"}})), Contains("SLURM_JOB_ID=4294967296"));
}

TEST_CASE("a timeout is read with a point, whatever the locale") {
  const char* comma = std::setlocale(LC_NUMERIC, "de_DE.UTF-8");
  if (comma == nullptr) WARN("no locale de_DE.UTF-8: the point is tested in this one only");
  CHECK(read({{"ZERORUN_TIMEOUT", "20.5"}}).timeout == std::chrono::milliseconds(20500));
  CHECK_THAT(refusal({{"ZERORUN_TIMEOUT", "20,5"}}), Contains("ZERORUN_TIMEOUT=20,5"));
  std::setlocale(LC_NUMERIC, "C");
}

TEST_CASE("srun: a step on one node of a larger job stays on that host") {
  const Environment environment = read(with(kSlurm, {{"SLURM_STEP_NODELIST", "gpu02"},
                                                     {"SLURM_STEP_TASKS_PER_NODE", "3"},
                                                     {"SLURM_NODEID", "0"},
                                                     {"SLURM_LOCALID", "2"}}));
  CHECK(environment.one_host);
  CHECK(environment.master_addr == "127.0.0.1");
  CHECK(environment.local_world_size == 3);
}

TEST_CASE(
    "srun: neighbouring jobs and their steps have different ports, below those of outgoing connections") {
  std::map<int, std::string> owners;
  for (int job = 4711; job < 4811; ++job) {
    for (int step = 0; step < 5; ++step) {
      const std::string name = std::to_string(job) + "." + std::to_string(step);
      const int port =
          read(with(kSlurm, {{"SLURM_JOB_ID", std::to_string(job)}, {"SLURM_STEP_ID", std::to_string(step)}}))
              .master_port;
      CHECK((port >= 20000 && port < 28000));
      INFO(name << " and " << owners[port]);
      CHECK(owners[port].empty());
      owners[port] = name;
    }
  }
  CHECK(read(with(kSlurm, {{"SLURM_JOB_ID", "501"}, {"SLURM_STEP_ID", "3"}})).master_port ==
        20000 + 16 * 1 + 3);
}

TEST_CASE("srun: a batch script is one rank, however many tasks its job has") {
  CHECK(read(kBatch).world_size == 1);
  CHECK(read(kBatch).rank == 0);
  // A job that was submitted from within a step inherits that step's variables.
  const Table inherited = with(kBatch, {{"SLURM_STEP_ID", "0"},
                                        {"SLURM_STEP_NODELIST", "gpu01"},
                                        {"SLURM_STEP_NUM_TASKS", "2"},
                                        {"SLURM_STEP_TASKS_PER_NODE", "2"}});
  CHECK_THAT(refusal(inherited), Contains("SLURM_STEP_NUM_TASKS=2") && Contains("SLURM_NTASKS is 4") &&
                                     Contains("unset SLURM_STEP_NUM_TASKS"));
}

TEST_CASE("mpirun: ranks that are all on one host meet at 127.0.0.1, and jobs have ports of their own") {
  const Environment environment = read(kOpenMpi);
  CHECK(environment.rank == 1);
  CHECK(environment.world_size == 2);
  CHECK(environment.local_rank == 1);
  CHECK(environment.local_world_size == 2);
  CHECK(environment.master_addr == "127.0.0.1");
  CHECK(environment.one_host);
  CHECK_THAT(environment.job, Contains("openmpi 125042689"));
  CHECK((environment.master_port >= 20000 && environment.master_port < 28000));
  const Environment other = read(with(kOpenMpi, {{"PMIX_NAMESPACE", "125108225"}}));
  CHECK(other.job != environment.job);
  CHECK(other.master_port != environment.master_port);
}

TEST_CASE("mpirun: ranks of several hosts meet on mpirun's host if rank 0 is there, or at MASTER_ADDR") {
  const Table several = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}});
  CHECK(read(several).master_addr == "192.0.2.2");
  CHECK_FALSE(read(several).one_host);
  const Table first = with(several, {{"OMPI_COMM_WORLD_RANK", "0"}});
  CHECK(read(first).master_addr == "192.0.2.2");
  const Table elsewhere = with(first, {{"OMPI_MCA_orte_hnp_uri", "1.0;tcp://198.51.100.1:52481"}});
  CHECK_THAT(refusal(elsewhere), Contains("rank 0 is not on mpirun's own host 198.51.100.1") &&
                                     Contains("mpirun -x MASTER_ADDR=HOST"));
  CHECK_THAT(refusal(without(first, "OMPI_MCA_orte_hnp_uri")), Contains("mpirun -x MASTER_ADDR=HOST"));
  const Environment given = read(with(elsewhere, {{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "1234"}}));
  CHECK(given.master_addr == "node7");
  CHECK(given.master_port == 1234);
}

TEST_CASE("mpiexec of MPICH: on one host the PID of the process manager identifies the job") {
  const Environment environment = read(kMpich);
  CHECK(environment.rank == 1);
  CHECK(environment.world_size == 2);
  CHECK(environment.local_rank == 1);
  CHECK(environment.local_world_size == 2);
  CHECK(environment.one_host);
  CHECK(environment.job == "mpiexec 4321");
  CHECK(environment.master_port == 24321);
  CHECK(read(without(kMpich, "PMI_FD")).master_port == 29500);
  const Table several = with(kMpich, {{"PMI_SIZE", "4"}});
  CHECK_THAT(refusal(several), Contains("mpiexec -genv MASTER_ADDR HOST"));
  CHECK(read(with(several, {{"MASTER_ADDR", "node7"}})).master_addr == "node7");
}

TEST_CASE("of several launchers around a program the innermost one counts") {
  const Table torchrun = {{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"MASTER_ADDR", "10.0.0.7"},
                          {"MASTER_PORT", "29500"}};
  for (const Table& outer : {kSlurm, kOpenMpi, kMpich}) {
    const Environment environment = read(with(outer, torchrun));
    CHECK(environment.rank == 5);
    CHECK(environment.world_size == 8);
    CHECK(environment.master_addr == "10.0.0.7");
  }
  CHECK(read(with(kSlurm, kOpenMpi)).world_size == 2);
  CHECK(read(with(kSlurm, kMpich)).world_size == 2);
  // srun --mpi=pmi2 adds these variables.
  CHECK(read(with(kSlurm, {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"PMI_JOBID", "1.0"}})).job == "slurm 1 0 ");
}

TEST_CASE("ZERORUN_JOB, MASTER_ADDR and MASTER_PORT override the values of the launcher") {
  for (const Table& table : {kSlurm, kOpenMpi, kMpich}) {
    CHECK(read(with(table, {{"ZERORUN_JOB", "token"}})).job == "zerorun token");
    const Environment environment =
        read(with(table, {{"MASTER_ADDR", "10.0.0.9"}, {"MASTER_PORT", "30000"}}));
    CHECK(environment.master_addr == "10.0.0.9");
    CHECK(environment.master_port == 30000);
  }
}

TEST_CASE("variables of launchers that are malformed or contradict each other are named") {
  const struct {
    Table table;
    const char* message;
  } cases[] = {
      {with(kSlurm, {{"SLURM_PROCID", "3"}}), "SLURM_PROCID=3: expected a whole number from 0 to 2"},
      {with(kSlurm, {{"SLURM_NODEID", "2"}}), "SLURM_NODEID=2: expected a whole number from 0 to 1"},
      {with(kSlurm, {{"SLURM_LOCALID", "1"}}), "SLURM_LOCALID=1: expected a whole number from 0 to 0"},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", "gpu[1-"}}),
       "SLURM_STEP_NODELIST=gpu[1-: expected a list such as"},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", "gpu1"}}), "SLURM_STEP_TASKS_PER_NODE=2,1: 3 tasks on 2 hosts"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x"}}),
       "SLURM_STEP_TASKS_PER_NODE=2(x: expected a list"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2,2"}}), "4 tasks on 2 hosts contradict"},
      {with(kSlurm, {{"SLURM_PROCID", "0"}}), "SLURM_NODEID=1: rank 0 is on gpu02, and not on gpu01"},
      {with(kSlurm, {{"MASTER_ADDR", "localhost"}}), "MASTER_ADDR=localhost: the ranks are on several hosts"},
      {with(kSlurm, {{"MASTER_PORT", "0"}}), "MASTER_PORT=0: expected"},
      {with(kSlurm, {{"WORLD_SIZE", "4"}}), "WORLD_SIZE=4: contradicts SLURM_STEP_NUM_TASKS"},
      {with(kOpenMpi, {{"LOCAL_RANK", "0"}}), "LOCAL_RANK=0: contradicts OMPI_COMM_WORLD_LOCAL_RANK"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}}), "OMPI_COMM_WORLD_RANK=2: expected"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}), "OMPI_COMM_WORLD_LOCAL_SIZE=3: expected"},
      {with(kMpich, {{"PMI_SIZE", "x"}}), "PMI_SIZE=x: expected"},
      {with(kMpich, {{"LOCAL_WORLD_SIZE", "1"}}), "LOCAL_WORLD_SIZE=1: contradicts MPI_LOCALNRANKS"},
  };
  for (const auto& [table, message] : cases) CHECK_THAT(refusal(table), Contains(message));
  for (const Table& whole : {kSlurm, kOpenMpi, kMpich}) {
    for (const char* name :
         {"SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST",
          "SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"}) {
      if (!whole.contains(name)) continue;
      CHECK_THAT(refusal(without(whole, name)), Contains(std::string(name) + " is not set"));
    }
  }
}

TEST_CASE("this host knows its own addresses and who made a socket pair") {
  const HostFacts host = HostFacts::of_this_host();
  CHECK(host.has_address("127.0.0.1"));
  CHECK_FALSE(host.has_address("no-such-host.invalid"));
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  CHECK(host.maker_of_socket(ends[0]) == getpid());
  for (const int end : ends) close(end);
  CHECK(host.maker_of_socket(-1) == 0);
}

}  // namespace zerorun
