// Tests that the CPU quota is read from the files of cgroups. The files are fakes in temporary folders.
#include "base/cores.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace {

using Files = std::map<std::string, std::string>;

std::optional<double> quota_with(const Files& files) {
  char root[] = "/tmp/zerorun_cgroups_XXXXXX";
  REQUIRE(mkdtemp(root));
  for (const auto& [name, content] : files) {
    const std::filesystem::path path = std::string(root) + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  const auto quota = zerorun::cpu_quota(root);
  std::filesystem::remove_all(root);
  return quota;
}

const std::string kGroup = "/proc/self/cgroup";
const std::string kMount = "/sys/fs/cgroup";

}  // namespace

TEST_CASE("cores: no quota if there are no cgroups, or none of them has a limit") {
  CHECK_FALSE(quota_with({}));
  CHECK_FALSE(quota_with({{kGroup, "0::/\n"}}));
  CHECK_FALSE(quota_with({{kGroup, "0::/a\n"}, {kMount + "/a/cpu.max", "max 100000\n"}}));
  CHECK_FALSE(quota_with({{kGroup, "4:cpu,cpuacct:/a\n"},
                          {kMount + "/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n"},
                          {kMount + "/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"}}));
  CHECK_FALSE(quota_with({{kGroup, "no cgroup\n\n:\n"}, {kMount + "/cpu.max", "100000 100000\n"}}));
  CHECK_FALSE(quota_with({{kGroup, "0::/\n"}, {kMount + "/cpu.max", "100000 0\n"}}));
}

TEST_CASE("cores: version 2 of cgroups, the smallest quota of the cgroup and its ancestors") {
  CHECK(quota_with({{kGroup, "0::/a/b\n"}, {kMount + "/a/b/cpu.max", "150000 100000\n"}}) == 1.5);
  CHECK(quota_with({{kGroup, "0::/a/b\n"},
                    {kMount + "/a/b/cpu.max", "max 100000\n"},
                    {kMount + "/a/cpu.max", "400000 100000\n"}}) == 4);
  CHECK(quota_with({{kGroup, "0::/a/b\n"},
                    {kMount + "/a/b/cpu.max", "300000 100000\n"},
                    {kMount + "/a/cpu.max", "200000 100000\n"}}) == 2);
  CHECK(quota_with({{kGroup, "0::/\n"}, {kMount + "/cpu.max", "200000 100000\n"}}) == 2);
  // In a container, the mount point may be the folder of the container's own cgroup.
  CHECK(quota_with({{kGroup, "0::/docker/0123\n"}, {kMount + "/cpu.max", "50000 100000\n"}}) == 0.5);
  CHECK(quota_with({{kGroup, "0::/../neighbour\n"}, {kMount + "/cpu.max", "50000 100000\n"}}) == 0.5);
}

TEST_CASE("cores: version 1 of cgroups, and both versions at once") {
  const std::string v1 = kMount + "/cpu,cpuacct/a";
  CHECK(quota_with({{kGroup, "9:memory:/a\n4:cpu,cpuacct:/a\n0::/\n"},
                    {v1 + "/cpu.cfs_quota_us", "300000\n"},
                    {v1 + "/cpu.cfs_period_us", "100000\n"}}) == 3);
  CHECK(quota_with({{kGroup, "4:cpu:/a\n"},
                    {kMount + "/cpu/a/cpu.cfs_quota_us", "120000\n"},
                    {kMount + "/cpu/a/cpu.cfs_period_us", "50000\n"}}) == 2.4);
  CHECK_FALSE(quota_with({{kGroup, "4:cpuset:/a\n"},
                          {kMount + "/cpuset/a/cpu.cfs_quota_us", "120000\n"},
                          {kMount + "/cpuset/a/cpu.cfs_period_us", "50000\n"}}));
  CHECK(quota_with({{kGroup, "4:cpu,cpuacct:/a\n0::/b\n"},
                    {v1 + "/cpu.cfs_quota_us", "300000\n"},
                    {v1 + "/cpu.cfs_period_us", "100000\n"},
                    {kMount + "/unified/b/cpu.max", "200000 100000\n"}}) == 2);
}

TEST_CASE("cores: at least one, and no more than the machine has") {
  const int cores = zerorun::count_usable_cores();
  CHECK(cores >= 1);
  CHECK(cores <= sysconf(_SC_NPROCESSORS_CONF));
}
