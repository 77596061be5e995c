// Tests that limits are read from recorded files of /proc and cgroups, and the findings about them.
#include "doctor/resource_limits.h"

#include <map>

#include "tests/doctor/findings.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using zerorun::testing::count_of;
using zerorun::testing::lines_about;
using namespace zerorun::doctor;

namespace {

// Recorded on Debian 12.
const std::string kLimits =
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max cpu time              unlimited            unlimited            seconds   \n"
    "Max processes             96364                96364                processes \n"
    "Max open files            1024                 1048576              files     \n"
    "Max locked memory         8388608              8388608              bytes     \n"
    "Max address space         unlimited            unlimited            bytes     \n";
const std::string kStatus =
    "Name:\tzerorun\nUid:\t1000\t1000\t1000\t1000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n"
    "Cpus_allowed:\tff0f\nCpus_allowed_list:\t0-3,8-15\n";
const std::string kStatusOfRoot = "Name:\tzerorun\nCapEff:\t000001fffeffffff\nCpus_allowed_list:\t0-1\n";

ResourceLimits limits_with(const std::map<std::string, std::string>& files) {
  const zerorun::testing::TemporaryFolder root;
  for (const auto& [name, content] : files) {
    std::filesystem::create_directories((root / name).parent_path());
    root.write(name, content);
  }
  return read_limits((root / "").parent_path());
}

ResourceLimits plenty() {
  ResourceLimits limits;
  limits.processors = 16;
  limits.memory_bytes = 64LL << 30;
  limits.memory_limit = "the machine's memory";
  return limits;
}

}  // namespace

TEST_CASE("limits: read from /proc and cgroups") {
  const ResourceLimits user = limits_with({{"proc/self/limits", kLimits},
                                           {"proc/self/status", kStatus},
                                           {"proc/self/cgroup", "0::/a/b\n"},
                                           {"proc/meminfo", "MemTotal: 8388608 kB\nSwapTotal: 0 kB\n"},
                                           {"sys/fs/cgroup/a/b/pids.max", "max\n"},
                                           {"sys/fs/cgroup/a/pids.max", "500\n"},
                                           {"sys/fs/cgroup/a/pids.current", "120\n"},
                                           {"sys/fs/cgroup/a/cpu.max", "250000 100000\n"},
                                           {"sys/fs/cgroup/a/memory.max", "4294967296\n"}});
  CHECK(user.locked_bytes == 8388608);
  CHECK(user.open_files == 1024);
  CHECK(user.most_open_files == 1048576);
  CHECK(user.processes == 96364);
  CHECK_FALSE(user.may_lock_more);
  CHECK_FALSE(user.may_start_more);
  CHECK(user.cgroup_processes == 380);
  CHECK(user.cpu_quota == 2.5);
  CHECK(user.memory_bytes == 4LL << 30);
  CHECK_THAT(user.memory_limit, Contains("/a/memory.max"));
  CHECK(user.processors == 12);

  const ResourceLimits root = limits_with({{"proc/self/limits", kLimits},
                                           {"proc/self/status", kStatusOfRoot},
                                           {"proc/self/cgroup", "8:pids:/\n4:memory:/\n"},
                                           {"sys/fs/cgroup/pids/pids.max", "100\n"},
                                           {"sys/fs/cgroup/pids/pids.current", "40\n"}});
  CHECK(root.may_lock_more);
  CHECK(root.may_start_more);
  CHECK(root.cgroup_processes == 60);
  CHECK_FALSE(root.memory_bytes);

  const ResourceLimits nothing = limits_with({});
  CHECK_FALSE(nothing.open_files);
  CHECK(nothing.processors == 1);
}

TEST_CASE("limits: high limits are no problem") {
  const auto findings = judge_limits(plenty(), {.local_ranks = 8, .world_size = 16, .has_rdma = true});
  CHECK(count_of(findings, Verdict::ok) == 5);
  CHECK(lines_about(findings, "memory") == "ok       memory           64.0 GiB (the machine's memory)\n");
}

TEST_CASE("limits: locked memory is a problem for RDMA only") {
  ResourceLimits limits = plenty();
  limits.locked_bytes = 8388608;
  CHECK_THAT(lines_about(judge_limits(limits, {}), "locked memory"),
             StartsWith("ok ") && Contains("8.0 MiB"));
  const auto rdma = judge_limits(limits, {.has_rdma = true});
  CHECK_THAT(lines_about(rdma, "locked memory"), StartsWith("problem ") && Contains("ulimit -l unlimited"));
  limits.may_lock_more = true;
  CHECK_THAT(lines_about(judge_limits(limits, {.has_rdma = true}), "locked memory"), StartsWith("ok "));
}

TEST_CASE("limits: more ranks need more open files") {
  ResourceLimits limits = plenty();
  limits.open_files = 1024;
  limits.most_open_files = 1048576;
  CHECK_THAT(lines_about(judge_limits(limits, {}), "open files"), StartsWith("ok "));
  CHECK_THAT(lines_about(judge_limits(limits, {.world_size = 512}), "open files"),
             StartsWith("problem ") && Contains("512 ranks need 2176") && Contains("ulimit -n 65536"));
  limits.most_open_files = 1024;
  CHECK_THAT(lines_about(judge_limits(limits, {}), "open files"), StartsWith("note "));
}

TEST_CASE("limits: processes of the user and of the cgroup") {
  ResourceLimits limits = plenty();
  limits.processes = 200;
  CHECK_THAT(lines_about(judge_limits(limits, {.local_ranks = 2}), "processes"), StartsWith("ok "));
  CHECK_THAT(
      lines_about(judge_limits(limits, {.local_ranks = 8}), "processes"),
      StartsWith("problem ") && Contains("this user may have 200") && Contains("8 ranks need about 288"));
  limits.may_start_more = true;
  CHECK_THAT(lines_about(judge_limits(limits, {.local_ranks = 8}), "processes"), StartsWith("ok "));
  limits.cgroup_processes = 50;
  CHECK_THAT(lines_about(judge_limits(limits, {.local_ranks = 2}), "processes"),
             StartsWith("problem ") && Contains("pids.max"));
}

TEST_CASE("limits: memory and cores") {
  ResourceLimits limits = plenty();
  limits.memory_bytes = 256LL << 20;
  limits.cpu_quota = 1.5;
  const auto findings = judge_limits(limits, {.local_ranks = 2});
  CHECK_THAT(lines_about(findings, "memory"), StartsWith("problem ") && Contains("256.0 MiB"));
  CHECK_THAT(
      lines_about(findings, "processors"),
      StartsWith("note ") && Contains("16 may be used, CPU quota of the cgroup 1.5; 2 ranks share them"));
  limits.memory_bytes = {};
  CHECK_THAT(lines_about(judge_limits(limits, {}), "memory"), StartsWith("note "));
}
