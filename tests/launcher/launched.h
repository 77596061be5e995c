// A launcher under test, with shell scripts as its ranks. Only one thread may use it. Every process of the
// job carries a mark in its environment, so a test can list the processes that still run, even if their
// parents have ended.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace zerorun::testing {

struct Setup {
  std::vector<std::string> options = {};  // of the launcher
  std::string script = {};  // each rank runs sh -c SCRIPT; $DIR is a folder that all ranks share
  std::vector<std::string> arguments = {};
  std::vector<std::pair<std::string, std::string>> environment = {};
  std::vector<int> ignored_signals = {};
  bool on_terminal = false;  // stdin, stdout and stderr are a new pseudo-terminal
};

struct Result {
  int exit_code = -1;  // -1: a signal killed the launcher
  std::string out;     // on a terminal: stdout and stderr together
  std::string err;
};

struct Process {
  pid_t pid;
  pid_t parent;
  std::string name;
};

class Launched {
 public:
  explicit Launched(Setup setup);
  /// Runs `zerorun` with exactly these arguments.
  explicit Launched(std::vector<std::string> arguments);
  ~Launched();
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& folder() const { return folder_; }
  void signal(int signal) const;
  void type(const std::string& keys) const;  // requires on_terminal
  void create_file(const std::string& name) const;

  // These fail the test after some seconds.
  void wait_for_file(const std::string& name) const;
  void wait_for_output(const std::string& text);
  void wait_for_error(const std::string& text);
  void wait_until_nothing_is_left() const;
  Result finish(double seconds = 20);
  /// Waits until this job or `other` has ended; returns whether this one has.
  bool ends_first(Launched& other);
  /// Like finish(), but reads the launcher's output only after the launcher has ended.
  Result finish_unread(double seconds);
  /// Closes the reading end of stdout.
  void close_output();

  /// Processes of the job, without the launcher and zombies.
  std::vector<Process> processes() const;

 private:
  void start(const Setup& setup, const std::vector<std::string>& arguments);
  void read_for(int milliseconds);
  bool has_ended();

  pid_t pid_ = -1;
  bool ended_ = false;
  int in_ = -1, out_ = -1, err_ = -1;
  int status_ = 0;
  std::string mark_;
  std::string folder_;
  std::string out_text_, err_text_;
};

/// False if the process has gone or is a zombie.
bool is_alive(pid_t pid);
/// The number of zombies among the children of `parent`.
int count_zombies(pid_t parent);

}  // namespace zerorun::testing
