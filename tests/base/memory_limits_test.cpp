// Tests that memory limits of the machine and of cgroups are read from /proc and /sys. The files are fakes.
#include "base/memory_limits.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace {

using Files = std::map<std::string, std::string>;

// Calls `read` with the root of these files.
template <typename Read>
auto with_files(const Files& files, const Read& read) {
  const zerorun::testing::TemporaryFolder root;
  const std::string top = (root / "").parent_path().string();
  for (const auto& [name, content] : files) {
    const std::filesystem::path path = top + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  return read(top);
}

std::vector<int64_t> limits_with(const Files& files) {
  return with_files(files, [](const std::string& top) {
    std::vector<int64_t> bytes;
    for (const auto& limit : zerorun::memory_limits(top)) bytes.push_back(limit.bytes);
    return bytes;
  });
}

int64_t available_with(const Files& files) {
  return with_files(files, [](const std::string& top) { return zerorun::available_memory(top); });
}

const std::string kMachine = "/proc/meminfo";
const std::string kGroup = "/proc/self/cgroup";
const std::string kMount = "/sys/fs/cgroup";
const std::string kNoSwap = "MemTotal:       1000 kB\nMemFree: 5 kB\nSwapTotal:             0 kB\n";
constexpr int64_t kKib = 1024;
using Limits = std::vector<int64_t>;

}  // namespace

TEST_CASE("memory limits: the machine's memory and swap, if no cgroup has a limit") {
  CHECK(limits_with({}).empty());
  CHECK(limits_with({{kMachine, kNoSwap}}) == Limits{1000 * kKib});
  CHECK(limits_with({{kMachine, "MemTotal: 1000 kB\nHugePages_Total: 0\nSwapTotal: 24 kB\n"}}) ==
        Limits{1024 * kKib});
  CHECK(limits_with({{kMachine, kNoSwap}, {kGroup, "0::/a\n"}, {kMount + "/a/memory.max", "max\n"}}) ==
        Limits{1000 * kKib});
  // cgroups version 1 writes "no limit" as a number larger than any machine's memory.
  CHECK(limits_with({{kMachine, kNoSwap},
                     {kGroup, "4:memory:/a\n"},
                     {kMount + "/memory/a/memory.limit_in_bytes", "9223372036854771712\n"}}) ==
        Limits{1000 * kKib});
}

TEST_CASE("memory limits: those of the process's cgroup and its ancestors, in both versions of cgroups") {
  CHECK(limits_with({{kMachine, kNoSwap},
                     {kGroup, "0::/a/b\n"},
                     {kMount + "/a/b/memory.max", "4096\n"},
                     {kMount + "/a/memory.max", "8192\n"}}) == Limits{1000 * kKib, 4096, 8192});
  CHECK(limits_with({{kMachine, "MemTotal: 1000 kB\nSwapTotal: 1 kB\n"},
                     {kGroup, "9:cpu:/c\n4:memory:/a\n0::/\n"},
                     {kMount + "/cpu/c/memory.limit_in_bytes", "1\n"},
                     {kMount + "/memory/a/memory.limit_in_bytes", "4096\n"}}) ==
        Limits{1001 * kKib, 4096 + kKib});
  // In a container the cgroup mount point may be the folder of the container's own cgroup.
  CHECK(
      limits_with({{kMachine, kNoSwap}, {kGroup, "0::/docker/0123\n"}, {kMount + "/memory.max", "512\n"}}) ==
      Limits{1000 * kKib, 512});
}

TEST_CASE("available memory: what the machine has, and what each cgroup leaves beside memory in use") {
  const std::string machine = "MemTotal: 1000 kB\nMemAvailable: 600 kB\nSwapTotal: 30 kB\nSwapFree: 20 kB\n";
  CHECK(available_with({{kMachine, machine}}) == 620 * kKib);
  CHECK(available_with({{kMachine, machine}, {kGroup, "0::/a\n"}, {kMount + "/a/memory.max", "max\n"}}) ==
        620 * kKib);
  // Files of the page cache can be reclaimed: 400 - (150 - 50) KiB, and the free swap.
  CHECK(available_with({{kMachine, machine},
                        {kGroup, "0::/a/b\n"},
                        {kMount + "/a/b/memory.max", "409600\n"},
                        {kMount + "/a/b/memory.current", "153600\n"},
                        {kMount + "/a/b/memory.stat", "anon 1\ninactive_file 51200\n"}}) == 320 * kKib);
  CHECK(available_with({{kMachine, machine},
                        {kGroup, "4:memory:/a\n"},
                        {kMount + "/memory/a/memory.limit_in_bytes", "102400\n"},
                        {kMount + "/memory/a/memory.usage_in_bytes", "204800\n"},
                        {kMount + "/memory/a/memory.stat", "total_inactive_file 0\n"}}) == 20 * kKib);
}
