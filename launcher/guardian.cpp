#include "launcher/guardian.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace zerorun::launcher {
namespace {

// Each message through the pipe is one pid_t, so that writes are atomic. A positive number tells the guardian
// to guard this process group, a negative one to forget the group, and kGoodbye to exit.
constexpr pid_t kGoodbye = 0;
constexpr char kName[] = "zr-guardian";

void take_own_name(int argc, char** argv) {
  prctl(PR_SET_NAME, kName);
  if (argc < 1) return;
  char* begin = argv[0];
  char* end = argv[argc - 1] + std::strlen(argv[argc - 1]);
  const size_t room = end - begin;
  std::memset(begin, 0, room);
  std::memcpy(begin, kName, std::min(room, sizeof kName - 1));
}

// Closes all descriptors from 3 on, except `kept`.
void close_others(int kept) {
  const bool closed_below = kept <= 3 || ::close_range(3, kept - 1, 0) == 0;
  if (closed_below && ::close_range(kept + 1, ~0U, 0) == 0) return;
  // An old system, or a container that forbids the call.
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return;
  std::vector<int> others;
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (fd > 2 && fd != kept && fd != ::dirfd(folder)) others.push_back(fd);
  }
  ::closedir(folder);
  for (const int fd : others) ::close(fd);
}

void leave_the_launchers_world(int pipe_end) {
  setsid();
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  // Closes the descriptors inherited from the launcher: a process that waits until the launcher closes its
  // output or a lock file must not also wait for the guardian. Only stderr stays open, for the last message
  // of guard().
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd : {0, 1}) ::dup2(nothing, fd);
  close_others(pipe_end);
  if (::chdir("/") != 0) return;  // harmless: chdir() only lets the launcher's folder be unmounted
}

[[noreturn]] void guard(int pipe_end, std::string_view message_at_end) {
  std::set<pid_t> groups;
  while (true) {
    pid_t message = 0;
    const ssize_t size = ::read(pipe_end, &message, sizeof message);
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof message) break;
    if (message == kGoodbye) _exit(0);
    if (message > 0) groups.insert(message);
    if (message < 0) groups.erase(-message);
  }
  for (pid_t group : groups) ::kill(-group, SIGKILL);
  [[maybe_unused]] ssize_t written = ::write(2, message_at_end.data(), message_at_end.size());
  _exit(0);
}

}  // namespace

Guardian::Guardian(int argc, char** argv, Guarded guarded) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(std::string("cannot open a pipe: ") + std::strerror(errno));
  UniqueFd read_end(ends[0]);
  pipe_ = UniqueFd(ends[1]);
  pid_ = ::fork();
  if (pid_ < 0) throw Error(std::string("cannot start the guardian process: ") + std::strerror(errno));
  if (pid_ == 0) {
    pipe_.reset();
    take_own_name(argc, argv);
    leave_the_launchers_world(read_end.get());
    guard(read_end.get(), guarded == Guarded::launcher
                              ? "zerorun: the launcher was killed: its ranks on all hosts end\n"
                              : "zerorun: the agent of this host was killed: its ranks end\n");
  }
}

Guardian::~Guardian() {
  send(kGoodbye);
  pipe_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

void Guardian::guard_own_group() const {
  send(::getpid());
}

void Guardian::forget(pid_t group) const {
  send(-group);
}

void Guardian::send(pid_t message) const {
  // The write fails only if the guardian was killed; the job then goes on without a guardian.
  [[maybe_unused]] ssize_t written = ::write(pipe_.get(), &message, sizeof message);
}

}  // namespace zerorun::launcher
