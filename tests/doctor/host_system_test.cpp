// Tests the findings about the host's system. The facts about the system are read from recorded files or set
// by the test.
#include "doctor/host_system.h"

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/doctor/findings.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using zerorun::testing::count_of;
using zerorun::testing::lines_about;
using namespace zerorun::doctor;

namespace {

HostSystem working() {
  HostSystem system;
  system.kernel = "Linux 6.1.0 x86_64";
  system.system = "Debian GNU/Linux 12 (bookworm)";
  system.libc = "2.36";
  system.processor = "AMD EPYC";
  system.nodes = "0-1";
  system.time = "2025-01-31 12:00:00";
  system.shm_bytes = 64LL << 20;
  system.free_bytes = {{"/home", 5LL << 30}};
  system.settings = {{"OMP_NUM_THREADS", "2"}};
  return system;
}

}  // namespace

TEST_CASE("host: versions from recorded files, settings without the job's secret") {
  const zerorun::testing::TemporaryFolder root;
  for (const char* folder : {"etc", "proc", "sys/devices/system/node"})
    std::filesystem::create_directories(root / folder);
  root.write("etc/os-release", "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
  root.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 7543 32-Core\n\nmodel name\t: other\n");
  root.write("sys/devices/system/node/online", "0-3\n");
  ::setenv("ZERORUN_JOB", "a secret", 1);
  ::setenv("NCCL_DEBUG", "INFO", 1);
  const HostSystem system = read_host_system((root / "").parent_path());
  ::unsetenv("ZERORUN_JOB");
  ::unsetenv("NCCL_DEBUG");
  CHECK(system.system == "Debian GNU/Linux 12 (bookworm)");
  CHECK(system.processor == "AMD EPYC 7543 32-Core");
  CHECK(system.nodes == "0-3");
  CHECK_THAT(system.kernel, StartsWith("Linux "));
  CHECK_THAT(system.libc, Contains("."));
  CHECK(system.memfd_error.empty());
  CHECK_FALSE(system.free_bytes.empty());
  const auto findings = judge_host_system(system, 0);
  CHECK_THAT(to_text(findings), Contains("NCCL_DEBUG=INFO") && !Contains("a secret"));
}

TEST_CASE("host: entries of the environment may have any form") {
  std::string odd = "NCCL_ODD", bytes = "NCCL_BYTES=\xff";
  char* entries[] = {odd.data(), bytes.data(), nullptr};
  char** const before = std::exchange(environ, entries);
  const HostSystem system = read_host_system();
  environ = before;
  CHECK(system.settings == std::vector<std::pair<std::string, std::string>>{{"NCCL_BYTES", "\xff"}});
}

TEST_CASE("host: all is well") {
  const auto findings = judge_host_system(working(), 0);
  CHECK(count_of(findings, Verdict::ok) == static_cast<int>(findings.size()));
  CHECK(lines_about(findings, "system") ==
        "ok       system           Linux 6.1.0 x86_64, Debian GNU/Linux 12 (bookworm), glibc 2.36\n");
}

TEST_CASE("host: problems with their remedies") {
  HostSystem system = working();
  system.clock_synchronized = false;
  system.memfd_error = "Function not implemented";
  system.io_uring_error = "Operation not permitted";
  system.free_bytes = {{"/full", 0}, {"/little", 1 << 20}};
  const auto findings = judge_host_system(system, 2);
  CHECK_THAT(lines_about(findings, "clock"), StartsWith("note ") && Contains("chrony"));
  CHECK_THAT(lines_about(findings, "shared memory"),
             StartsWith("problem ") && Contains("Function not implemented") && Contains("seccomp"));
  CHECK_THAT(lines_about(findings, "io_uring"), StartsWith("note ") && Contains("Operation not permitted"));
  CHECK_THAT(lines_about(findings, "shared files"), StartsWith("problem ") && Contains("--shm-size"));
  CHECK_THAT(lines_about(findings, "disk"),
             StartsWith("problem ") && Contains("0 B free in /full") && Contains("note     disk"));
}
