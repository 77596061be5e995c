#include "launcher/process_state.h"

#include <cxxabi.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <thread>

#include "base/unique_fd.h"

namespace zerorun::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatienceWithStack(300);
constexpr size_t kMostLines = 40;
constexpr size_t kMostNative = 16;  // where there are Python's lines too

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string folder_of(pid_t process, pid_t thread, const std::string& root) {
  return root + "/proc/" + std::to_string(process) + "/task/" + std::to_string(thread);
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 && text ? text.get() : name;
}

// "libc.so.6: pause" of a line such as "/lib/libc.so.6(pause+0x12) [0x7f...]", or without a name
// "program(+0x12f0)", which addr2line understands.
std::string readable(const std::string& line) {
  constexpr size_t kLongest = 160;
  const size_t open = line.find('('), close = line.find(')', open);
  if (open == std::string::npos || close == std::string::npos) return line.substr(line.rfind('/') + 1);
  const std::string file = line.substr(0, open).substr(line.rfind('/', open) + 1);
  const std::string place = line.substr(open + 1, close - open - 1);
  const size_t plus = place.rfind('+');
  if (plus == 0 || plus == std::string::npos) return file + "(" + place + ")";
  std::string text = file + ": " + demangled(place.substr(0, plus));
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

// Leaves out the frames of the handler that wrote the stack. Before it Python's may have run, which raised
// the signal again: then the return from a signal's handler, the second frame, is there twice.
std::vector<std::string> readable_lines(const std::string& text) {
  std::vector<std::string> python, native;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.empty()) continue;
    const bool is_python = line.starts_with("  File ") || line.ends_with("(most recent call first):");
    (is_python ? python : native).push_back(is_python ? line : readable(line));
  }
  if (native.size() > 1) {
    const auto last = std::ranges::find(native.rbegin(), native.rend(), std::string(native[1]));
    native.erase(native.begin(), last.base());
  }
  const size_t most = python.empty() ? kMostLines : kMostNative;
  if (native.size() > most) native.resize(most);
  python.insert(python.end(), native.begin(), native.end());
  if (python.size() > kMostLines) python.resize(kMostLines);
  return python;
}

std::string read_stack_file(pid_t process, int descriptor) {
  constexpr size_t kMost = 1 << 18;
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return {};
  std::string text(kMost, '\0');
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

}  // namespace

char state_in(const std::string& stat) {
  // "PID (NAME) STATE ...", where NAME may contain any character.
  const size_t end_of_name = stat.rfind(')');
  return end_of_name == std::string::npos || end_of_name + 2 >= stat.size() ? '?' : stat[end_of_name + 2];
}

char state_of(pid_t process, pid_t thread, const std::string& root) {
  return state_in(read_file(folder_of(process, thread, root) + "/stat"));
}

std::string describe_state(pid_t process, pid_t thread, const std::string& root) {
  const std::string place = read_file(folder_of(process, thread, root) + "/wchan");
  const std::string where = place.empty() || place == "0" ? "" : " (in " + place + ")";
  switch (state_of(process, thread, root)) {
    case 'T':
      return "is stopped by a signal (SIGSTOP, or Ctrl-Z in its terminal)";
    case 'R':
      return "runs: it computes, or is in a loop that does not end";
    case 'S':
      return "sleeps" + where;
    case 'D':
      return "sleeps in the kernel, where nothing wakes it" + where +
             ": often for a disk or a file server that does not answer";
    default:
      return "is in a state that /proc does not tell";
  }
}

pid_t process_of(const ActivityNow& now, pid_t group) {
  const auto process = static_cast<pid_t>(now.process);
  return process > 0 && ::getpgid(process) == group ? process : group;
}

std::vector<std::string> ask_for_stack(const ActivityBoard& board, int rank, pid_t process) {
  const ActivityNow before = board.of(rank);
  if (before.stack_signal == 0 || before.process != process) return {};
  if (::syscall(SYS_tgkill, process, before.thread, before.stack_signal) != 0) return {};
  const auto end = std::chrono::steady_clock::now() + kPatienceWithStack;
  while (board.of(rank).stacks == before.stacks) {
    if (std::chrono::steady_clock::now() >= end) return {};
    std::this_thread::sleep_for(milliseconds(5));
  }
  return readable_lines(read_stack_file(process, before.stack_file));
}

}  // namespace zerorun::launcher
