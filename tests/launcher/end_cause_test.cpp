// Tests the causes that the launcher reports for a rank's end. The tests supply the text of the kernel's log,
// and fakes of /proc and cgroups in temporary folders.
#include "launcher/end_cause.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "launcher/end_evidence.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using zerorun::testing::TemporaryFolder;
using namespace zerorun::launcher;

namespace {

using Lines = std::vector<std::string>;

constexpr int exited(int code) {
  return W_EXITCODE(code, 0);
}
constexpr int killed_by(int signal) {
  return W_EXITCODE(0, signal);
}

std::string cause(int wait_status, Lines last_lines = {}) {
  return describe_cause({.wait_status = wait_status, .last_lines = std::move(last_lines)});
}

std::string cause_of_sigkill(OomCounts before, OomCounts after, std::optional<OomKill> kill = {}) {
  return describe_cause(
      {.wait_status = killed_by(SIGKILL), .before = before, .after = after, .oom_kill = kill});
}

OomCounts counts_with(const std::vector<std::pair<std::string, std::string>>& files) {
  const TemporaryFolder root;
  for (const auto& [name, content] : files) {
    std::filesystem::create_directories((root / name.substr(1)).parent_path());
    root.write(name.substr(1), content);
  }
  return read_oom_counts((root / "").parent_path());
}

// The first kill in this log is recorded (Linux 6.18, cgroups of version 1). The other kills follow the
// format strings of the kernel's mm/oom_kill.c.
const Lines kKernelLog = {
    "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "memory: usage 48828kB, limit 48828kB, failcnt 70",
    "[  23379]     0 23379    52970    13701    12032     1669         0   163840        0             0 "
    "python3",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/"
    "zrtest,task_memcg="
    "/zrtest/inner,task=python3,pid=23379,uid=0",
    "Memory cgroup out of memory: Killed process 23379 (python3) total-vm:211880kB, anon-rss:48128kB, "
    "file-rss:6676kB, shmem-rss:0kB, UID:0 pgtables:160kB oom_score_adj:0",
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/"
    "user.slice/"
    "user-0.slice/session-4.scope,task=gpt2,pid=812,uid=0",
    "Out of memory: Killed process 812 (gpt2) total-vm:4193212kB, anon-rss:3145728kB, file-rss:0kB, "
    "shmem-rss:1048576kB, UID:0 pgtables:7000kB oom_score_adj:0",
    "oom-kill:constraint=CONSTRAINT_MEMORY_POLICY,nodemask=1,cpuset=/"
    ",mems_allowed=0-1,global_oom,task_memcg=/,"
    "task=gpt2,pid=813,uid=0",
};

}  // namespace

TEST_CASE("end: no cause is reported for success, or if only an exit code is known") {
  CHECK(cause(exited(0), {"terminate called after throwing an instance of 'int'"}).empty());
  CHECK(cause(exited(1)).empty());
  CHECK(cause(exited(1), {"error: rank 1: the gradient of head.weight is not finite"}).empty());
  CHECK(cause(exited(255)).empty());
}

TEST_CASE("end: out of memory, by the kernel's counters") {
  CHECK_THAT(cause_of_sigkill({.cgroup = 1, .machine = 7}, {.cgroup = 2, .machine = 8}),
             StartsWith("out of memory: the kernel killed it at a memory limit: use fewer ranks"));
  CHECK_THAT(cause_of_sigkill({.cgroup = 1, .machine = 7}, {.cgroup = 1, .machine = 8}),
             StartsWith("killed from outside: memory did not run out"));
  CHECK_THAT(cause_of_sigkill({.machine = 7}, {.machine = 8}), StartsWith("probably out of memory"));
  CHECK_THAT(cause_of_sigkill({.machine = 7}, {.machine = 7}), StartsWith("killed from outside: memory"));
  CHECK_THAT(cause_of_sigkill({}, {}), StartsWith("killed from outside, or out of memory"));
  // The rank was in another cgroup than the launcher: only the kernel's log shows the kill.
  CHECK_THAT(cause_of_sigkill({.cgroup = 0, .machine = 7}, {.cgroup = 0, .machine = 8},
                              {{.limit = "the memory limit of cgroup /a", .resident_bytes = 3LL << 29}}),
             StartsWith("out of memory: the kernel killed it at the memory limit of cgroup /a, when it used "
                        "1.50 GiB itself: use fewer ranks"));
  // If a shell ran the program, the shell exits with 128 + 9 after a SIGKILL of the program.
  CHECK_THAT(describe_cause({.wait_status = exited(137), .before = {.cgroup = 0}, .after = {.cgroup = 1}}),
             StartsWith("out of memory"));
}

TEST_CASE("end: the kernel's log names the limit that was reached") {
  const auto group = find_oom_kill(kKernelLog, 23379);
  REQUIRE(group);
  CHECK(group->limit == "the memory limit of cgroup /zrtest");
  CHECK(group->resident_bytes == (48128 + 6676) * 1024);
  const auto machine = find_oom_kill(kKernelLog, 812);
  REQUIRE(machine);
  CHECK(machine->limit == "the machine's memory");
  CHECK(machine->resident_bytes == 4LL << 30);
  const auto node = find_oom_kill(kKernelLog, 813);
  REQUIRE(node);
  CHECK(node->limit == "the memory of the NUMA nodes that it is bound to");
  CHECK(node->resident_bytes == 0);
  CHECK_FALSE(find_oom_kill(kKernelLog, 81));
  CHECK_FALSE(find_oom_kill(kKernelLog, 2337));
  CHECK_FALSE(find_oom_kill({}, 1));
}

TEST_CASE("end: counters of both versions of cgroups") {
  const std::string group = "/proc/self/cgroup";
  const std::string mount = "/sys/fs/cgroup";
  CHECK_FALSE(counts_with({}).cgroup);
  CHECK_FALSE(counts_with({}).machine);
  const OomCounts v1 = counts_with(
      {{group, "9:cpu:/\n4:memory:/a/b\n"},
       {mount + "/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 9\n"},
       {mount + "/memory/a/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"},
       {"/proc/vmstat", "nr_free_pages 1\noom_kill 12\n"}});
  CHECK(v1.cgroup == 3);
  CHECK(v1.machine == 12);
  CHECK_FALSE(counts_with({{group, "4:memory:/\n"},  // before Linux 4.13: no oom_kill
                           {mount + "/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 1\n"}})
                  .cgroup);
  const std::string events = "low 0\nhigh 0\nmax 31\noom 5\noom_kill ";
  CHECK(counts_with({{group, "0::/a/b\n"},
                     {mount + "/a/memory.events", events + "8\noom_group_kill 0\n"},
                     {mount + "/a/b/memory.events", events + "2\noom_group_kill 0\n"}})
            .cgroup == 2);
  // In a container, the mount point may be the folder of the container's own cgroup.
  CHECK(counts_with({{group, "0::/docker/0123\n"}, {mount + "/memory.events", events + "4\n"}}).cgroup == 4);
}

TEST_CASE("end: signals are explained, with what to do") {
  struct Row {
    int signal;
    std::string beginning;
  };
  for (const Row& row :
       std::vector<Row>{{SIGSEGV, "segmentation fault: "},
                        {SIGBUS, "bus error: "},
                        {SIGFPE, "arithmetic error: "},
                        {SIGILL, "illegal instruction: "},
                        {SIGABRT, "it called abort(): "},
                        {SIGSYS, "forbidden system call: "},
                        {SIGTERM, "ended from outside: a person or a batch system sent SIGTERM"},
                        {SIGXFSZ, "wrote a larger file than it may: "}}) {
    CHECK_THAT(cause(killed_by(row.signal)), StartsWith(row.beginning));
    CHECK_THAT(cause(killed_by(row.signal) | 0x80), StartsWith(row.beginning));  // with a core dump
    CHECK_THAT(cause(exited(128 + row.signal)), StartsWith(row.beginning));
  }
  CHECK(cause(killed_by(SIGUSR1)) == "ended by SIGUSR1");
}

TEST_CASE("end: an uncaught exception with its text") {
  CHECK(cause(killed_by(SIGABRT),
              {"step 3", "terminate called after throwing an instance of 'std::runtime_error'",
               "  what():  no batch 7"}) == "uncaught exception: std::runtime_error: no batch 7");
  CHECK(cause(killed_by(SIGABRT), {"terminate called after throwing an instance of 'int'"}) ==
        "uncaught exception: int");
  CHECK(cause(killed_by(SIGABRT), {"  what():  the line above was cut off", "Exception raised from f"}) ==
        "uncaught exception: the line above was cut off");
  CHECK_THAT(cause(killed_by(SIGABRT), {"terminate called without an active exception"}),
             Contains("std::thread that nobody joined"));
  CHECK(cause(exited(1), {"Traceback (most recent call last):", "  File \"train.py\", line 3, in <module>",
                          "    main()", "torch.cuda.DeferredCudaCallError: no device", "[rank1] bye"}) ==
        "uncaught exception: torch.cuda.DeferredCudaCallError: no device");
  CHECK(cause(exited(1), {"  File \"train.py\", line 3, in <module>", "    raise KeyboardInterrupt",
                          "KeyboardInterrupt"}) == "uncaught exception: KeyboardInterrupt");
  CHECK(cause(exited(1), {"Traceback (most recent call last):", "  File \"a.py\", line 1", "KeyError: 'a'",
                          "During handling of the above exception, another exception occurred:",
                          "Traceback (most recent call last):", "  File \"a.py\", line 3",
                          "ValueError: b"}) == "uncaught exception: ValueError: b");
  // What the program went on after is not the reason.
  for (const char* earlier : {"warning: [Errno 28] No space left on device", "MemoryError (handled)"}) {
    CHECK(cause(exited(1), {earlier, "Traceback (most recent call last):", "  File \"a.py\", line 3",
                            "ValueError: wrong label"}) == "uncaught exception: ValueError: wrong label");
  }
  // The program went on after the exception.
  const Lines handled = {"Traceback (most recent call last):", "  File \"a.py\", line 3", "KeyError: 'a'"};
  const auto later = [&](const std::string& line) {
    Lines lines = handled;
    lines.push_back(line);
    return cause(exited(1), lines);
  };
  CHECK_THAT(later("error: No space left on device"), StartsWith("disk full: "));
  CHECK_THAT(later("error: CUDA out of memory"), StartsWith("out of memory: "));
  CHECK(later("bye") == "uncaught exception: KeyError: 'a'");
  CHECK_THAT(cause(exited(1), {"Traceback (most recent call last):", "  File \"a.py\", line 3",
                               "OSError: [Errno 28] No space left on device: 'x'"}),
             StartsWith("disk full: "));
  CHECK(cause(exited(1), {"Note: nothing", "Warning: nothing"}).empty());
}

TEST_CASE("end: a failed check, a failed allocation, a full disk") {
  const std::string assertion = "train: main.cpp:7: int main(): Assertion `n > 0' failed.";
  CHECK(cause(killed_by(SIGABRT), {assertion}) ==
        "failed check, after which it called abort(): " + assertion);
  CHECK_THAT(cause(killed_by(SIGABRT), {"free(): invalid pointer"}), Contains("free(): invalid pointer"));
  CHECK_THAT(cause(killed_by(SIGABRT), {"terminate called after throwing an instance of 'std::bad_alloc'",
                                        "  what():  std::bad_alloc"}),
             StartsWith("out of memory: an allocation failed (what():  std::bad_alloc): use fewer ranks"));
  CHECK_THAT(cause(exited(1), {"error: rank 1: DefaultCPUAllocator: can't allocate memory: you tried to "
                               "allocate 8 bytes."}),
             StartsWith("out of memory: an allocation failed (error: rank 1"));

  const std::string no_space = "error: rank 0: cannot write runs/1/0.safetensors: No space left on device";
  CHECK(cause(exited(1), {no_space, "and more"}) ==
        "disk full: free space on the disk, or raise the quota (" + no_space + ")");
  EndEvidence full = {.wait_status = exited(1), .last_lines = {no_space}, .full_disks = {"/data"}};
  CHECK_THAT(describe_cause(full), StartsWith("disk full: free space on the disk of /data, or"));
  full.last_lines = {};
  CHECK(describe_cause(full) == "probably disk full: the disk of /data has no space left: free some");
  full.wait_status = killed_by(SIGSEGV);
  CHECK_THAT(describe_cause(full), StartsWith("segmentation fault"));
}

TEST_CASE("end: what a rank's memory was used for, if it ran out or may have") {
  zerorun::MemoryNow memory{
      .rank = 1, .phase = zerorun::MemoryPhase::counted, .step = 4, .resident = 1 << 20};
  memory.noted = 1;
  memory.use = zerorun::MemoryUse::gradients;
  const auto report = [&](const EndEvidence& evidence) {
    std::string text;
    for (const std::string& line : lack_of_memory(evidence, memory)) text += line + '\n';
    return text;
  };
  CHECK(report({.wait_status = exited(1), .last_lines = {"error: another"}}).empty());
  CHECK(report({.wait_status = killed_by(SIGSEGV)}).empty());
  memory.has_failed = 1;  // the program has said so elsewhere than on stderr
  CHECK_THAT(report({.wait_status = exited(3)}), Contains("memory was wanted: for gradients"));
  memory.has_failed = 0;
  CHECK_THAT(report({.wait_status = exited(1), .last_lines = {"error: std::bad_alloc"}}),
             Contains("memory of rank 1 in MiB, in step 5") && Contains("memory was wanted: for gradients"));
  EndEvidence killed{.wait_status = killed_by(SIGKILL), .before = {.cgroup = 2}, .after = {.cgroup = 2}};
  CHECK(report(killed).empty());
  killed.after.cgroup = 3;
  CHECK_THAT(report(killed),
             Contains("resident memory of the process          1.0") && !Contains("was wanted"));
  killed.oom_kill = OomKill{.limit = "the memory limit of cgroup /a", .resident_bytes = 64 << 20};
  CHECK_THAT(report(killed), Contains("resident memory of the process         64.0"));
  memory = {};
  CHECK(report(killed).empty());
}

TEST_CASE("end: evidence of a child of this process") {
  const OomCounts before = read_oom_counts();
  const pid_t child = ::fork();
  if (child == 0) {
    ::raise(SIGKILL);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  const EndEvidence evidence = collect_evidence(child, status, {"line"}, before, {"/", "/no/such/folder"});
  CHECK(evidence.last_lines == Lines{"line"});
  CHECK_FALSE(evidence.oom_kill);
  CHECK(evidence.full_disks.empty());
  CHECK_THAT(describe_cause(evidence), StartsWith("killed from outside"));
}

TEST_CASE("a disk that does not answer does not stop the launcher") {
  const auto is_full = [](const std::string& folder) {
    if (folder == "/dead") ::sleep(60);
    return folder != "/free";
  };
  const auto start = std::chrono::steady_clock::now();
  CHECK(full_disks({"/full", "/free", "/data"}, is_full) == Lines{"/full", "/data"});
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(400));
  CHECK(full_disks({"/dead", "/full"}, is_full) == Lines{"/full"});
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("end: a stopped process is distinguished from a running one") {
  const TemporaryFolder root;
  for (const auto& [pid, stat] : std::vector<std::pair<std::string, std::string>>{
           {"7", "7 (a) T (b) T 1 7 7\n"}, {"8", "8 (name) S) t 1 8 8\n"}, {"9", "9 (T) S 1 9 9\n"}}) {
    std::filesystem::create_directories(root / ("proc/" + pid));
    root.write("proc/" + pid + "/stat", stat);
  }
  const std::string top = (root / "").parent_path();
  CHECK(describe_stop(7, top) ==
        "stopped by a signal (SIGSTOP, or Ctrl-Z in its terminal): `kill -CONT 7` lets it go on");
  CHECK_THAT(describe_stop(8, top), StartsWith("stopped by a debugger"));
  CHECK(describe_stop(9, top).empty());
  CHECK(describe_stop(10, top).empty());

  const pid_t child = ::fork();
  if (child == 0) {
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, WUNTRACED) == child);
  CHECK_THAT(describe_stop(child), StartsWith("stopped by a signal"));
  REQUIRE(::kill(child, SIGKILL) == 0);
  REQUIRE(::waitpid(child, &status, 0) == child);
}
