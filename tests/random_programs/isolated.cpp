#include "tests/random_programs/isolated.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "tests/comm/rank_processes.h"

namespace zerorun::testing {
namespace {

using Clock = std::chrono::steady_clock;

// A child process that runs programs. It writes "passed" to its pipe for each program that passes. For the
// first program that fails it writes "failed:" and the message, and ends.
class Child {
 public:
  template <typename Body>
  explicit Child(const Body& body) : log_(std::tmpfile()) {
    int ends[2];
    if (!log_ || ::pipe(ends) != 0) throw std::runtime_error("no pipe for a child process");
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork() failed");
    if (pid_ > 0) {
      close(ends[1]);
      pipe_ = ends[0];
      return;
    }
    close(ends[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(fileno(log_), STDERR_FILENO);
    body([&](const std::string& line) {
      if (::write(ends[1], line.data(), line.size()) < 0) _exit(1);
    });
    _exit(0);  // runs no destructors: the objects belong to the parent
  }
  ~Child() {
    end();
    close(pipe_);
    std::fclose(log_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int descriptor() const { return pipe_; }
  bool closed() const { return closed_; }
  const std::string& text() const { return text_; }

  void read_more() {
    char buffer[4096];
    const ssize_t got = read(pipe_, buffer, sizeof buffer);
    closed_ = got <= 0;
    if (got > 0) text_.append(buffer, static_cast<size_t>(got));
  }

  /// Kills the child unless it has ended. Returns its wait status.
  int end() {
    if (pid_ > 0) {
      if (!closed_) kill(pid_, SIGKILL);
      waitpid(pid_, &status_, 0);
      pid_ = 0;
    }
    return status_;
  }

  std::string last_words() const {
    std::fseek(log_, 0, SEEK_END);
    std::fseek(log_, std::max(0L, std::ftell(log_) - 600), SEEK_SET);
    std::string words(600, '\0');
    words.resize(std::fread(words.data(), 1, words.size(), log_));
    return words;
  }

 private:
  std::FILE* log_;
  pid_t pid_ = 0;
  int pipe_ = -1;
  int status_ = 0;
  bool closed_ = false;
  std::string text_;
};

constexpr const char* kPassed = "passed\n";

// A folder in memory, where the many small files of checkpoints cost little.
class MemoryFolder {
 public:
  MemoryFolder() {
    std::string pattern = "/dev/shm/zerorun_programs_XXXXXX";
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder " + pattern);
    path_ = pattern;
  }
  ~MemoryFolder() { remove(path_); }
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;

  std::filesystem::path of(size_t program) const { return path_ / std::to_string(program); }
  /// Several processes may call it at once.
  static void remove(const std::filesystem::path& path) {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }

 private:
  std::filesystem::path path_;
};

template <typename Run>
void run_all(std::span<const Program> programs, const MemoryFolder& folder, const Run& run, const auto& say) {
  for (size_t index = 0; index < programs.size(); ++index) {
    // Another process may still be in the program before this one, but in none before that.
    if (index >= 2) MemoryFolder::remove(folder.of(index - 2));
    std::string failure;
    try {
      failure = run(programs[index], folder.of(index));
    } catch (const std::exception& error) {
      failure = std::string("the plain run threw: ") + error.what();
    }
    if (ftruncate(STDERR_FILENO, 0) == 0) lseek(STDERR_FILENO, 0, SEEK_SET);
    if (!failure.empty()) return say("failed:\n" + failure);
    say(kPassed);
  }
}

// Reads the children's output until all children have ended, or until none has written for `patience`.
void await(std::vector<std::unique_ptr<Child>>& children, std::chrono::milliseconds patience) {
  for (;;) {
    std::vector<pollfd> open;
    std::vector<Child*> readers;
    for (const auto& child : children) {
      if (child->closed()) continue;
      open.push_back({.fd = child->descriptor(), .events = POLLIN, .revents = 0});
      readers.push_back(child.get());
    }
    if (open.empty()) return;
    if (poll(open.data(), open.size(), static_cast<int>(patience.count())) <= 0) return;
    for (size_t i = 0; i < open.size(); ++i) {
      if (open[i].revents != 0) readers[i]->read_more();
    }
  }
}

std::string how_it_ended(Child& child) {
  const bool hung = !child.closed();
  const int status = child.end();
  if (hung) return "said nothing for too long and was killed\n" + child.last_words();
  if (WIFSIGNALED(status))
    return std::string("killed by: ") + strsignal(WTERMSIG(status)) + "\n" + child.last_words();
  return WEXITSTATUS(status) == 0
             ? ""
             : "ended with code " + std::to_string(WEXITSTATUS(status)) + "\n" + child.last_words();
}

// `passed` is the smallest number of programs that any child has passed. `failure` has the children's
// messages about the next program.
Outcome outcome_of(std::vector<std::unique_ptr<Child>>& children, size_t programs) {
  Outcome outcome{.passed = programs};
  for (size_t rank = 0; rank < children.size(); ++rank) {
    Child& child = *children[rank];
    const std::string& text = child.text();
    size_t passed = 0;
    size_t place = 0;
    for (; text.compare(place, std::strlen(kPassed), kPassed) == 0; place += std::strlen(kPassed)) ++passed;
    std::string failure = text.substr(place);
    const std::string ending = how_it_ended(child);
    if (!ending.empty()) failure += "process " + std::to_string(rank) + " " + ending;
    if (failure.empty() && passed < programs) failure = "process " + std::to_string(rank) + " ended early\n";
    if (failure.empty()) continue;
    outcome.passed = std::min(outcome.passed, passed);
    outcome.failure += failure;
  }
  return outcome;
}

}  // namespace

bool run_alike(const Program& a, const Program& b) {
  const bool in_threads = !in_processes(a.setup.place) && !in_processes(b.setup.place);
  return in_threads || (a.setup.place == b.setup.place && a.setup.ranks == b.setup.ranks &&
                        a.setup.groups == b.setup.groups);
}

Outcome run_isolated(std::span<const Program> programs, std::chrono::milliseconds deadline) {
  const Setup& setup = programs.front().setup;
  const MemoryFolder folder;
  std::vector<std::unique_ptr<Child>> children;
  if (in_processes(setup.place)) {
    const int port = free_port();
    for (int rank = 0; rank < setup.ranks * setup.groups; ++rank) {
      children.push_back(std::make_unique<Child>([&](const auto& say) {
        std::optional<RankProcess> process;
        auto run = [&](const Program& program, const std::filesystem::path& own) {
          if (!process) process.emplace(setup, rank, port, deadline);
          return process->run(program, own);
        };
        run_all(programs, folder, run, say);
        process.reset();
      }));
    }
  } else {
    children.push_back(std::make_unique<Child>([&](const auto& say) {
      const auto run = [&](const Program& program, const std::filesystem::path& own) {
        return run_in_threads(program, own, deadline);
      };
      run_all(programs, folder, run, say);
    }));
  }
  await(children, 4 * deadline + std::chrono::seconds(30));
  return outcome_of(children, programs.size());
}

}  // namespace zerorun::testing
