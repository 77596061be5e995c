#include "launcher/end_cause.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <string_view>

#include "launcher/rank_status.h"
#include "launcher/stderr_clues.h"

namespace zerorun::launcher {
namespace {

constexpr char kAllocationFailed[] = "out of memory: an allocation failed";
constexpr char kUseLessMemory[] =
    ": use fewer ranks on this host or a smaller micro-batch, offload more to files, or raise the limit";

std::string gib(int64_t bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f GiB", static_cast<double>(bytes) / (int64_t{1} << 30));
  return text.data();
}

/// The signal that ended the rank, or 0. A shell reports the signal of the program it ran as 128 + signal.
int signal_of(int wait_status) {
  if (WIFSIGNALED(wait_status)) return WTERMSIG(wait_status);
  const int code = WEXITSTATUS(wait_status);
  return code > 128 && code < 128 + 32 ? code - 128 : 0;
}

enum class OomVerdict { killed, not_killed, maybe, unknown };

OomVerdict oom_verdict(const EndEvidence& evidence) {
  const auto grew = [](std::optional<int64_t> before, std::optional<int64_t> after) {
    return before && after && *after > *before;
  };
  if (grew(evidence.before.cgroup, evidence.after.cgroup)) return OomVerdict::killed;
  if (grew(evidence.before.machine, evidence.after.machine)) {
    if (evidence.oom_kill) return OomVerdict::killed;
    return evidence.after.cgroup ? OomVerdict::not_killed : OomVerdict::maybe;
  }
  return evidence.after.cgroup || evidence.after.machine ? OomVerdict::not_killed : OomVerdict::unknown;
}

std::string cause_of_kill(const EndEvidence& evidence) {
  switch (oom_verdict(evidence)) {
    case OomVerdict::killed: {
      if (!evidence.oom_kill)
        return std::string("out of memory: the kernel killed it at a memory limit") + kUseLessMemory;
      const OomKill& kill = *evidence.oom_kill;
      const std::string used =
          kill.resident_bytes > 0 ? ", when it used " + gib(kill.resident_bytes) + " itself" : "";
      return "out of memory: the kernel killed it at " + kill.limit + used + kUseLessMemory;
    }
    case OomVerdict::maybe:
      return "probably out of memory: the kernel killed a process of this machine for lack of memory "
             "(`dmesg` names it); if it was this one," +
             std::string(kUseLessMemory).substr(1);
    case OomVerdict::not_killed:
      return "killed from outside: memory did not run out, so a person, a batch system or a container "
             "runtime sent SIGKILL: look into their logs";
    case OomVerdict::unknown:
      break;
  }
  return "killed from outside, or out of memory: this system does not count kills for lack of memory: look "
         "into `dmesg`";
}

struct SignalCause {
  int signal;
  std::string_view text;
};

constexpr std::array<SignalCause, 13> kSignalCauses = {{
    {SIGSEGV,
     "segmentation fault: it used memory that is not its own, such as a null pointer or a tensor's data "
     "after its release: run one rank under gdb, or build with -fsanitize=address"},
    {SIGBUS,
     "bus error: a file that it had mapped was cut short, or the file system of the mapping (/dev/shm, the "
     "disk) is full: check `df` and who changes its files"},
    {SIGFPE, "arithmetic error: an integer was divided by zero: run one rank under gdb"},
    {SIGILL,
     "illegal instruction: the program or a library is built for a newer processor than this one: build it "
     "for this processor (-march)"},
    {SIGSYS, "forbidden system call: the container's seccomp profile does not allow it: change the profile"},
    {SIGXCPU, "used up its CPU time: raise the limit that `ulimit -t` shows"},
    {SIGXFSZ, "wrote a larger file than it may: raise the limit that `ulimit -f` shows"},
    {SIGPIPE, "wrote to a pipe or connection that nobody reads any more: look at what it was connected to"},
    {SIGTRAP, "stopped at a breakpoint or a failed check: run one rank under gdb"},
    {SIGTERM, "ended from outside: a person or a batch system sent SIGTERM: look into their logs"},
    {SIGINT, "ended from outside: a person or a program sent SIGINT to this rank alone"},
    {SIGHUP, "ended from outside: its terminal or session was closed: start the job under nohup or tmux"},
    {SIGQUIT, "ended from outside: a person or a program sent SIGQUIT to this rank alone"},
}};

std::string cause_of_signal(int signal) {
  const auto* cause = std::ranges::find(kSignalCauses, signal, &SignalCause::signal);
  return cause != kSignalCauses.end() ? std::string(cause->text) : "ended by " + signal_name(signal);
}

std::string cause_of_abort(const EndEvidence& evidence) {
  if (const auto text = find_failed_assertion(evidence.last_lines))
    return "failed check, after which it called abort(): " + *text;
  return "it called abort(): its last lines may say why, else run one rank under gdb";
}

// `lines`: where to look for the reason.
std::string cause_of_disk(const EndEvidence& evidence, const std::vector<std::string>& lines) {
  const auto line = find_full_disk(lines);
  if (line) {
    const std::string where = evidence.full_disks.empty() ? "" : " of " + evidence.full_disks.front();
    return "disk full: free space on the disk" + where + ", or raise the quota (" + *line + ")";
  }
  if (evidence.full_disks.empty()) return {};
  return "probably disk full: the disk of " + evidence.full_disks.front() + " has no space left: free some";
}

}  // namespace

bool was_killed_from_outside(const EndEvidence& evidence) {
  const OomVerdict verdict = oom_verdict(evidence);
  return signal_of(evidence.wait_status) == SIGKILL &&
         (verdict == OomVerdict::not_killed || verdict == OomVerdict::unknown);
}

std::vector<std::string> lack_of_memory(const EndEvidence& evidence, MemoryNow memory) {
  if (signal_of(evidence.wait_status) != SIGKILL) {
    const bool failed = describe_cause(evidence).starts_with(kAllocationFailed);
    return failed || memory.has_failed != 0 ? memory_report(memory, true) : std::vector<std::string>();
  }
  const OomVerdict verdict = oom_verdict(evidence);
  if (verdict != OomVerdict::killed && verdict != OomVerdict::maybe) return {};
  if (evidence.oom_kill && evidence.oom_kill->resident_bytes > 0)
    memory.resident = evidence.oom_kill->resident_bytes;
  return memory_report(memory, false);
}

std::string describe_cause(const EndEvidence& evidence) {
  if (succeeded(evidence.wait_status)) return {};
  const int signal = signal_of(evidence.wait_status);
  if (signal == SIGKILL) return cause_of_kill(evidence);
  // If a program detects an error, it exits or calls abort(). Its last lines then say more than its wait
  // status.
  const bool gave_up = signal == 0 || signal == SIGABRT;
  const auto exception = gave_up ? find_exception(evidence.last_lines) : std::nullopt;
  std::vector<std::string> lines = evidence.last_lines;
  // The exception that ended the program is the reason, not what earlier lines say of an error that the
  // program went on after. What comes after it is: then the program has gone on after the exception.
  if (exception && !find_full_disk({exception->text}) && !find_failed_allocation({exception->text}))
    lines.erase(lines.begin(), lines.begin() + static_cast<ptrdiff_t>(exception->next_line));
  if (gave_up || signal == SIGBUS) {
    const std::string cause = cause_of_disk(evidence, lines);
    if (!cause.empty()) return cause;
  }
  if (gave_up) {
    if (const auto line = find_failed_allocation(lines))
      return std::string(kAllocationFailed) + " (" + *line + ")" + kUseLessMemory;
    if (exception) return "uncaught exception: " + exception->text;
  }
  if (signal == SIGABRT) return cause_of_abort(evidence);
  if (signal != 0) return cause_of_signal(signal);
  return {};
}

}  // namespace zerorun::launcher
