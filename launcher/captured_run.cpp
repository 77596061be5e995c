#include "launcher/captured_run.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/unique_fd.h"
#include "launcher/heartbeat.h"

extern char** environ;

namespace zerorun::launcher {
namespace {

using Clock = std::chrono::steady_clock;

// The time between SIGTERM and SIGKILL to the launcher. After SIGTERM the launcher needs at most 7 s: the
// ranks' default grace of 3 s, and then its waits for reports and for readers of its output.
constexpr std::chrono::milliseconds kTimeToEnd(8000);
// The time that the kernel gets to end the child after SIGKILL.
constexpr std::chrono::milliseconds kTimeToDie(2000);

struct Pipe {
  UniqueFd read_end, write_end;
};

[[noreturn]] void out_of_resources() {
  throw Error(std::string("cannot start the launcher: ") + std::strerror(errno) +
              " (see the limits that `ulimit -a` shows)");
}

Pipe open_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) out_of_resources();
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// False at the end of the pipe.
bool read_some(const UniqueFd& pipe, std::string& text) {
  std::array<char, 65536> bytes;
  const ssize_t size = ::read(pipe.get(), bytes.data(), bytes.size());
  if (size > 0) text.append(bytes.data(), size);
  return size > 0 || (size < 0 && errno == EINTR);
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Waits for the end of the child, which has closed its output or got SIGKILL.
void reap(pid_t pid, CapturedRun& run, const std::function<void()>& meanwhile) {
  const Clock::time_point killed = Clock::now();
  while (true) {
    const pid_t ended = ::waitpid(pid, &run.wait_status, run.timed_out || meanwhile ? WNOHANG : 0);
    if (ended == pid || (ended < 0 && errno != EINTR)) return;
    if (run.timed_out && Clock::now() - killed > kTimeToDie) return;
    if (ended == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (meanwhile) meanwhile();
    }
  }
}

}  // namespace

CapturedRun run_launcher(const std::vector<std::string>& arguments, std::chrono::milliseconds limit,
                         const std::optional<std::vector<std::string>>& environment,
                         const std::function<void()>& meanwhile) {
  Pipe out = open_pipe();
  Pipe err = open_pipe();
  std::vector<std::string> words = arguments;
  words.insert(words.begin(), "zerorun");
  std::vector<std::string> variables = environment.value_or(std::vector<std::string>());
  const std::vector<char*> argv = pointers_to(words);
  const std::vector<char*> envp = pointers_to(variables);

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) out_of_resources();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(127);
    ::dup2(out.write_end.get(), STDOUT_FILENO);
    ::dup2(err.write_end.get(), STDERR_FILENO);
    ::execve("/proc/self/exe", argv.data(), environment ? envp.data() : environ);
    ::_exit(127);
  }
  out.write_end.reset();
  err.write_end.reset();

  CapturedRun run;
  Clock::time_point deadline = Clock::now() + limit;
  int next_signal = SIGTERM;
  while (out.read_end.is_open() || err.read_end.is_open()) {
    std::array<pollfd, 2> entries = {pollfd{out.read_end.get(), POLLIN, 0},
                                     pollfd{err.read_end.get(), POLLIN, 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    ::poll(entries.data(), entries.size(),
           static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), kControlTick).count()));
    if (entries[0].revents != 0 && !read_some(out.read_end, run.out)) out.read_end.reset();
    if (entries[1].revents != 0 && !read_some(err.read_end, run.err)) err.read_end.reset();
    if (meanwhile) meanwhile();
    if (Clock::now() < deadline) continue;
    run.timed_out = true;
    ::kill(pid, next_signal);
    if (next_signal == SIGKILL) break;
    next_signal = SIGKILL;
    deadline = Clock::now() + kTimeToEnd;
  }
  reap(pid, run, meanwhile);
  return run;
}

}  // namespace zerorun::launcher
