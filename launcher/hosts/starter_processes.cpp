#include "launcher/hosts/starter_processes.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "base/error.h"
#include "launcher/hosts/node_job.h"
#include "launcher/program_path.h"

namespace zerorun::launcher {
namespace {

constexpr size_t kStarterReadSize = 1 << 16;

// A pipe that contains `text`, the ticket, for an agent's stdin.
UniqueFd pipe_with(const std::string& text) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error("no pipe for the ticket of an agent");
  UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  if (::write(write_end.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw Error("cannot write the ticket of an agent");
  }
  return read_end;
}

std::string find_candidate(const StartCommand& command) {
  std::string names;
  for (const std::string& candidate : command.candidates) {
    try {
      return find_program(candidate);
    } catch (const UserError&) {
      names += (names.empty() ? "" : " or ") + candidate;
    }
  }
  throw UserError("agents on other hosts are started by " + names +
                  ", which is not in PATH: install it, or choose another --launcher");
}

}  // namespace

StarterProcesses::StarterProcesses(Console& console, size_t first_source, Signals& signals,
                                   const Guardian& guardian)
    : console_(console),
      next_source_(static_cast<int>(first_source)),
      signals_(signals),
      guardian_(guardian),
      buffer_(kStarterReadSize, '\0') {
  ::getrlimit(RLIMIT_NOFILE, &open_files_);
  const rlimit raised = {open_files_.rlim_max, open_files_.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);
}

StarterProcesses::~StarterProcesses() {
  ::setrlimit(RLIMIT_NOFILE, &open_files_);
  for (const Process& process : processes_) {
    if (!process.status) guardian_.forget(process.process.pid);
  }
}

void StarterProcesses::start(const StartCommand& command, const std::string& file, int inherited) {
  ProcessPlan plan{.name = command.name,
                   .file = file.empty() ? find_candidate(command) : file,
                   .arguments = command.arguments,
                   .environment = inherited_environment(),
                   .inherited = inherited,
                   .open_files = open_files_};
  for (const auto& [name, value] : command.variables) {
    const bool set = std::ranges::any_of(
        plan.environment, [&name = name](const std::string& entry) { return entry.starts_with(name + "="); });
    // Inserted in front, because MPICH's mpirun 4.0 does not pass the last variable on to other hosts.
    if (!set) plan.environment.insert(plan.environment.begin(), name + "=" + value);
  }
  for (const auto& [name, more] : command.additions) {
    const std::string start = name + "=";
    const auto entry = std::ranges::find_if(
        plan.environment, [&start = start](const std::string& text) { return text.starts_with(start); });
    if (entry == plan.environment.end()) {
      plan.environment.insert(plan.environment.begin(), start + more);
    } else {
      *entry += (entry->size() > start.size() ? " " : "") + more;
    }
  }
  const UniqueFd input = pipe_with(command.input);
  plan.in = input.get();
  processes_.push_back(
      {command.name, command.node, start_process(plan, signals_, guardian_), next_source_++, {}});
}

void StarterProcesses::append_poll_entries(std::vector<pollfd>& entries) {
  polled_.clear();
  for (Process& process : processes_) {
    for (const Stream stream : kStreams) {
      const UniqueFd& pipe = stream == Stream::out ? process.process.out : process.process.err;
      if (!pipe.is_open() || !console_.takes_more(stream)) continue;
      entries.push_back({pipe.get(), POLLIN, 0});
      polled_.emplace_back(&process, stream);
    }
  }
}

void StarterProcesses::read(const std::vector<pollfd>& entries, size_t first) {
  for (size_t i = 0; i < polled_.size(); ++i) {
    if (entries[first + i].revents != 0) read_some(*polled_[i].first, polled_[i].second);
  }
}

bool StarterProcesses::read_some(Process& process, Stream stream) {
  UniqueFd& pipe = stream == Stream::out ? process.process.out : process.process.err;
  if (!pipe.is_open()) return false;
  const ssize_t size = ::read(pipe.get(), buffer_.data(), buffer_.size());
  if (size < 0) return errno == EINTR;
  if (size == 0) {
    pipe.reset();
    return false;
  }
  const std::string_view bytes(buffer_.data(), size);
  process.last_lines.feed(bytes);
  console_.feed(process.source, stream, bytes);
  return true;
}

std::vector<StarterProcesses::Ended> StarterProcesses::reap() {
  std::vector<Ended> ended;
  while (true) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid < 0 && errno == EINTR) continue;
    if (pid <= 0) return ended;
    const auto process = std::ranges::find_if(
        processes_, [&](const Process& one) { return one.process.pid == pid && !one.status; });
    if (process == processes_.end()) continue;
    process->status = status;
    guardian_.forget(pid);
    for (const Stream stream : kStreams) {
      while (read_some(*process, stream)) continue;
      console_.close(process->source, stream);
    }
    ended.push_back({process->name, process->node, status, process->last_lines.lines()});
  }
}

bool StarterProcesses::any_runs() const {
  return std::ranges::any_of(processes_, [](const Process& process) { return !process.status; });
}

std::optional<std::string> StarterProcesses::find_line(std::string_view text) const {
  for (const Process& process : processes_) {
    if (process.node >= 0) continue;
    for (const std::string& line : process.last_lines.lines()) {
      if (line.find(text) != std::string::npos) return line;
    }
  }
  return std::nullopt;
}

void StarterProcesses::signal_all(int signal) const {
  for (const Process& process : processes_) {
    if (!process.status) ::kill(-process.process.pid, signal);
  }
}

std::vector<pid_t> StarterProcesses::orphans(std::optional<pid_t> keeper) const {
  std::vector<pid_t> others = {guardian_.pid()};
  if (keeper) others.push_back(*keeper);
  for (const Process& process : processes_) others.push_back(process.process.pid);
  return orphans_.find(others);
}

}  // namespace zerorun::launcher
