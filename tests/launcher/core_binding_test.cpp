// Tests how cores are divided among ranks, on topologies in hwloc's synthetic notation, and that a bound
// process runs only on its cores.
#include "launcher/core_binding.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/processor_list.h"
#include "launcher/hosts/dry_run.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using zerorun::testing::user_error;
using namespace zerorun::launcher;

namespace {

// Returns a text "PROCESSORS@NODES xTHREADS" for each rank.
std::vector<std::string> shares(const HostCores& host, int ranks, const std::string& list = "",
                                std::optional<double> quota = {}) {
  std::vector<std::string> texts;
  for (const CoreBinding& binding : bind_cores(host, ranks, list, quota)) {
    const std::string nodes = binding.nodes.empty() ? "" : "@" + zerorun::processor_list(binding.nodes);
    texts.push_back(zerorun::processor_list(binding.processors) + nodes + " x" +
                    std::to_string(binding.threads));
  }
  return texts;
}

HostCores allowing(const std::string& topology, const std::string& mask) {
  HostCores host = synthetic_cores(topology);
  host.usable = zerorun::parse_processor_list(mask, "mask");
  return host;
}

using Shares = std::vector<std::string>;

const std::string kOneSocket = "pack:1 core:8 pu:1";
const std::string kOneSocketSmt = "pack:1 core:4 pu:2";  // core i: processors 2i, 2i + 1
const std::string kUsualNumbers = "pack:1 core:4 pu:2(indexes=0,4,1,5,2,6,3,7)";
const std::string kTwoSockets = "pack:2 numa:1 core:4 pu:1";
const std::string kInterleaved = "pack:2 numa:1 core:4 pu:1(indexes=0,2,4,6,1,3,5,7)";
const std::string kFourNodes = "pack:2 numa:2 core:4 pu:1";
const std::string kCaches = "pack:1 numa:1 l3:2 core:3 pu:1";

}  // namespace

TEST_CASE("binding: one socket, with and without hyperthreads") {
  CHECK(shares(synthetic_cores(kOneSocket), 1) == Shares{"0-7 x8"});
  CHECK(shares(synthetic_cores(kOneSocket), 2) == Shares{"0-3 x4", "4-7 x4"});
  CHECK(shares(synthetic_cores(kOneSocket), 8).back() == "7 x1");
  CHECK(shares(synthetic_cores(kOneSocketSmt), 2) == Shares{"0-3 x2", "4-7 x2"});
  CHECK(shares(synthetic_cores(kUsualNumbers), 2) == Shares{"0-1,4-5 x2", "2-3,6-7 x2"});
  CHECK(shares(synthetic_cores(kUsualNumbers), 4) == Shares{"0,4 x1", "1,5 x1", "2,6 x1", "3,7 x1"});
  // Some virtual machines describe processors only.
  CHECK(shares(synthetic_cores("pu:4"), 2) == Shares{"0-1 x2", "2-3 x2"});
}

TEST_CASE("binding: cores that cannot be divided evenly stay free") {
  CHECK(shares(synthetic_cores(kOneSocket), 3) == Shares{"0-1 x2", "2-3 x2", "4-5 x2"});
  CHECK(shares(synthetic_cores(kOneSocket), 5) == Shares{"0 x1", "1 x1", "2 x1", "3 x1", "4 x1"});
}

TEST_CASE("binding: ranks stay within a NUMA node where all of them can") {
  CHECK(shares(synthetic_cores(kTwoSockets), 1) == Shares{"0-7@0-1 x8"});
  CHECK(shares(synthetic_cores(kTwoSockets), 2) == Shares{"0-3@0 x4", "4-7@1 x4"});
  CHECK(shares(synthetic_cores(kInterleaved), 2) == Shares{"0,2,4,6@0 x4", "1,3,5,7@1 x4"});
  CHECK(shares(synthetic_cores(kTwoSockets), 4) == Shares{"0-1@0 x2", "2-3@0 x2", "4-5@1 x2", "6-7@1 x2"});
  // Ranks are spread evenly over the sockets, also if more of them would fit into the first socket.
  CHECK(shares(synthetic_cores(kTwoSockets), 3) == Shares{"0-1@0 x2", "2-3@0 x2", "4-5@1 x2"});
  CHECK(shares(synthetic_cores("pack:2 numa:1 core:3 pu:1"), 4) ==
        Shares{"0@0 x1", "1@0 x1", "3@1 x1", "4@1 x1"});
  CHECK(shares(synthetic_cores("pack:2 numa:1 core:5 pu:1"), 4) ==
        Shares{"0-1@0 x2", "2-3@0 x2", "5-6@1 x2", "7-8@1 x2"});
  // A node of five cores has room for only one rank of three cores. So one of the three ranks gets cores of
  // both nodes.
  CHECK(shares(synthetic_cores("pack:2 numa:1 core:5 pu:1"), 3) ==
        Shares{"0-2@0 x3", "3-5@0-1 x3", "6-8@1 x3"});
}

TEST_CASE("binding: four NUMA nodes in two packages") {
  CHECK(shares(synthetic_cores(kFourNodes), 2) == Shares{"0-7@0-1 x8", "8-15@2-3 x8"});
  CHECK(shares(synthetic_cores(kFourNodes), 4) == Shares{"0-3@0 x4", "4-7@1 x4", "8-11@2 x4", "12-15@3 x4"});
  CHECK(shares(synthetic_cores(kFourNodes), 6) ==
        Shares{"0-1@0 x2", "2-3@0 x2", "4-5@1 x2", "8-9@2 x2", "10-11@2 x2", "12-13@3 x2"});
}

TEST_CASE("binding: ranks stay within an L3 cache where all of them can") {
  CHECK(shares(synthetic_cores(kCaches), 2) == Shares{"0-2 x3", "3-5 x3"});
  CHECK(shares(synthetic_cores(kCaches), 4) == Shares{"0 x1", "1 x1", "3 x1", "4 x1"});
  CHECK(shares(synthetic_cores(kCaches), 3) == Shares{"0-1 x2", "2-3 x2", "4-5 x2"});
}

TEST_CASE("binding: threads within the CPU quota") {
  CHECK(shares(synthetic_cores(kOneSocket), 2, "", 4.0) == Shares{"0-3 x2", "4-7 x2"});
  CHECK(shares(synthetic_cores(kOneSocket), 2, "", 3.5) == Shares{"0-3 x1", "4-7 x1"});
  CHECK(shares(synthetic_cores(kOneSocket), 2, "", 0.5) == Shares{"0-3 x1", "4-7 x1"});
  CHECK(shares(synthetic_cores(kOneSocket), 2, "", 64.0) == Shares{"0-3 x4", "4-7 x4"});
  CHECK(shares(synthetic_cores(kOneSocket), 2, "", 1e18) == Shares{"0-3 x4", "4-7 x4"});
}

TEST_CASE("binding: uses only processors that the affinity mask, the cpuset and --bind_core_list allow") {
  CHECK(shares(allowing(kOneSocket, "2-5"), 2) == Shares{"2-3 x2", "4-5 x2"});
  CHECK(shares(allowing(kTwoSockets, "0-1,4-6"), 2) == Shares{"0-1@0 x2", "4-5@1 x2"});
  // A core counts even if only one of its hyperthreads is allowed.
  CHECK(shares(allowing(kOneSocketSmt, "0-2,4"), 3) == Shares{"0-1 x1", "2 x1", "4 x1"});
  CHECK(shares(synthetic_cores(kOneSocket), 2, "0-2,5") == Shares{"0-1 x2", "2,5 x2"});
  CHECK(shares(synthetic_cores(kInterleaved), 2, "0-3") == Shares{"0,2@0 x2", "1,3@1 x2"});
  CHECK(shares(allowing(kOneSocket, "2-5"), 1, "3,5") == Shares{"3,5 x2"});
}

TEST_CASE("binding: masks as the kernel reads them") {
  const CoreBinding binding =
      bind_cores(synthetic_cores("pack:2 numa:1 core:40 pu:1"), 1, "1,63-64,79", {})[0];
  CHECK(binding.processor_mask == std::vector<unsigned long>{1UL << 1 | 1UL << 63, 1UL | 1UL << 15});
  CHECK(binding.node_mask == std::vector<unsigned long>{3});
}

TEST_CASE("binding: errors name the option, the host's processors and the remedy") {
  struct Row {
    HostCores host;
    int ranks;
    std::string list;
    std::string message;
  };
  const HostCores eight = synthetic_cores(kOneSocket);
  for (const Row& row : std::vector<Row>{
           {eight, 9, "", "--bind_cores_to_rank: 9 ranks on this host need a core each, and it offers 8 "},
           {synthetic_cores(kOneSocketSmt), 5, "", "it offers 4 (hyperthreads of a core count once; "},
           {eight, 3, "1,4",
            "and --bind_core_list has 2 (hyperthreads of a core count once; processors 1,4)"},
           {eight, 1, "6-8", "--bind_core_list: processor 8 does not exist on this host, which offers 0-7"},
           {allowing(kOneSocket, "0-3"), 1, "3-4",
            "--bind_core_list: processor 4 may not be used here: the affinity mask or the cgroup's cpuset "
            "allows 0-3"},
           {eight, 1, "0-", "--bind_core_list: expected numbers and ranges such as 0-3,5, found '0-'"},
           {eight, 1, "a", "found 'a'"},
           {eight, 1, "1,,2", "found '1,,2'"},
           {eight, 1, "1,", "found '1,'"},
           {eight, 1, "-1", "found '-1'"},
           {eight, 1, "1-2-3", "found '1-2-3'"},
           {eight, 1, "1, 2", "found '1, 2'"},
           {eight, 1, "99999999999999999999", "found '99999999999999999999'"},
           {eight, 1, "0-9999999", "found '0-9999999'"},
           {eight, 1, "3-1", "the range 3-1 ends before it begins"},
           {eight, 1, "0-3,3", "the numbers must increase, but 3 follows 3"},
           {eight, 1, "4,2", "the numbers must increase, but 2 follows 4"}}) {
    CAPTURE(row.list);
    CHECK_THAT(user_error([&] { bind_cores(row.host, row.ranks, row.list, {}); }), Contains(row.message));
  }
  CHECK_THAT(user_error([] { synthetic_cores("nonsense:-1"); }), Contains("'nonsense:-1'"));
  CHECK_THAT(user_error([] {
               refuse_other_bindings({"A=1", "KMP_AFFINITY=compact"});
             }),
             StartsWith("--bind_cores_to_rank: the environment variable KMP_AFFINITY binds threads too"));
  CHECK(user_error([] { refuse_other_bindings({"KMP_AFFINITY=", "KMP_AFFINITY_X=1"}); }) == "no error");
}

TEST_CASE("binding: a rank gets the threads of its share, and a dry run shows the share") {
  JobEnvironment job;
  job.placement = Placement({{"a", {0, 1}}, {"b", {0, 1}}});
  NodeOrder order;
  order.arguments = {"prog"};
  job.bindings = bind_cores(synthetic_cores(kUsualNumbers), 2, "", {});
  const std::string text = describe_job(job, 1, {}, order);
  CHECK_THAT(text, Contains(" RANK=2 ") && Contains(" OMP_NUM_THREADS=2 ") &&
                       Contains(" taskset -c 0-1,4-5 prog\n") && Contains(" taskset -c 2-3,6-7 prog\n"));
  CHECK(text.find("taskset") > text.find("\nb: "));
}

TEST_CASE("binding: a bound process runs on its share only") {
  const HostCores host = read_host_cores();
  REQUIRE_FALSE(host.usable.empty());
  // Binds to the last processor, and to the memory of NUMA node 0, because every machine has a node 0.
  CoreBinding binding = bind_cores(host, 1, std::to_string(host.usable.back()), {})[0];
  binding.node_mask = {1};
  const pid_t child = ::fork();
  if (child == 0) {
    if (!apply_binding(binding)) ::_exit(1);
    cpu_set_t mask;
    ::sched_getaffinity(0, sizeof mask, &mask);
    if (CPU_COUNT(&mask) != 1 || !CPU_ISSET(host.usable.back(), &mask)) ::_exit(2);
    int mode = -1;
    unsigned long nodes[16] = {};
    // A container may forbid set_mempolicy() and get_mempolicy().
    if (::syscall(SYS_get_mempolicy, &mode, nodes, sizeof nodes * 8, nullptr, 0) == 0 &&
        ((mode != MPOL_PREFERRED_MANY && mode != MPOL_PREFERRED && mode != MPOL_DEFAULT) ||
         (mode != MPOL_DEFAULT && nodes[0] != 1)))
      ::_exit(3);
    binding.processor_mask = {0};
    ::_exit(apply_binding(binding) ? 4 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
