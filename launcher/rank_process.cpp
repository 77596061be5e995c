#include "launcher/rank_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "launcher/heartbeat.h"

namespace zerorun::launcher {
namespace {

struct RankPipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

[[noreturn]] void out_of_resources(const std::string& name, const std::string& what) {
  throw Error("cannot start " + name + ": " + what + ": " + std::strerror(errno) +
              " (start fewer ranks, or raise the limits that `ulimit -a` shows)");
}

RankPipe open_rank_pipe(const std::string& name) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) out_of_resources(name, "no pipe");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

/// Everything the child needs, made before the fork: the child may only make async-signal-safe calls.
struct ChildPlan {
  const char* file;
  char* const* arguments;
  char* const* environment;
  int in, out, err, failure, inherited;
  pid_t launcher;
  const CoreBinding* binding;  // null: not bound
  const rlimit* open_files;    // null: unchanged
};

// Runs in the child, whose stderr is already the rank's. Async-signal-safe.
[[noreturn]] void fail_to_bind() {
  constexpr std::string_view kMessage =
      "error: the system does not let this rank run on its cores, which were free to use a moment ago: start "
      "the job again, or without --bind_cores_to_rank\n";
  [[maybe_unused]] ssize_t written = ::write(2, kMessage.data(), kMessage.size());
  _exit(127);
}

[[noreturn]] void become_rank(const ChildPlan& plan, const Signals& signals, const Guardian& guardian) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.launcher) _exit(127);  // the launcher died before prctl()
  guardian.guard_own_group();
  signals.restore_in_child();
  ::dup2(plan.in, 0);
  ::dup2(plan.out, 1);
  ::dup2(plan.err, 2);
  if (plan.binding && !apply_binding(*plan.binding)) fail_to_bind();
  if (plan.open_files) ::setrlimit(RLIMIT_NOFILE, plan.open_files);
  if (plan.inherited >= 0) ::fcntl(plan.inherited, F_SETFD, 0);
  ::execve(plan.file, plan.arguments, plan.environment);
  const int error = errno;
  [[maybe_unused]] ssize_t written = ::write(plan.failure, &error, sizeof error);
  _exit(127);
}

[[noreturn]] void report_exec_failure(const std::string& file, int error) {
  std::string remedy;
  if (error == ENOEXEC)
    remedy = ": not a program for this machine (a script needs a first line such as #!/bin/sh)";
  if (error == ENOENT) remedy = ": the interpreter or loader it asks for is missing";
  if (error == E2BIG) remedy = ": shorten the arguments or the environment";
  throw UserError("cannot run '" + file + "': " + std::strerror(error) + remedy);
}

}  // namespace

RankProcess start_process(const ProcessPlan& plan, Signals& signals, const Guardian& guardian) {
  RankPipe out = open_rank_pipe(plan.name);
  RankPipe err = open_rank_pipe(plan.name);
  RankPipe failure = open_rank_pipe(plan.name);  // closed by a successful exec
  UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing.is_open()) out_of_resources(plan.name, "/dev/null");

  const std::vector<char*> argument_pointers = pointers(plan.arguments);
  const std::vector<char*> environment_pointers = pointers(plan.environment);
  const ChildPlan child = {plan.file.c_str(),
                           argument_pointers.data(),
                           environment_pointers.data(),
                           plan.in >= 0 ? plan.in : nothing.get(),
                           out.write_end.get(),
                           err.write_end.get(),
                           failure.write_end.get(),
                           plan.inherited,
                           ::getpid(),
                           plan.binding,
                           plan.open_files ? &*plan.open_files : nullptr};
  const pid_t pid = ::fork();
  if (pid < 0) out_of_resources(plan.name, "no process");
  if (pid == 0) become_rank(child, signals, guardian);

  failure.write_end.reset();
  // Waits until the user interrupts, because a program on a network file system may take many seconds to
  // load.
  pollfd entries[] = {{failure.read_end.get(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
  const int tick = plan.gives_up ? static_cast<int>(kControlTick.count()) : -1;
  while (::poll(entries, std::size(entries), tick) <= 0 || entries[0].revents == 0) {
    if (signals.is_interrupted() || (plan.gives_up && plan.gives_up())) {
      ::kill(pid, SIGKILL);  // not reaped here: a process that waits for a dead file server stays
      throw Interrupted("interrupted while the system loads " + plan.file);
    }
  }
  int error = 0;
  ssize_t size = 0;
  do size = ::read(failure.read_end.get(), &error, sizeof error);
  while (size < 0 && errno == EINTR);
  if (size == sizeof error) {
    ::waitpid(pid, nullptr, 0);
    guardian.forget(pid);
    report_exec_failure(plan.file, error);
  }
  for (const UniqueFd* end : {&out.read_end, &err.read_end}) ::fcntl(end->get(), F_SETFL, O_NONBLOCK);
  return {pid, std::move(out.read_end), std::move(err.read_end)};
}

}  // namespace zerorun::launcher
