// A launcher under test, with shell scripts as its ranks. Used by one thread. Every process of the job
// carries a mark in its environment, so a test can ask which ones are still there, whatever has become of
// their parents.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace zerorun::testing {

struct Setup {
  std::vector<std::string> options = {};  // of the launcher
  std::string script = {};                // run by each rank as sh -c SCRIPT; $DIR is a folder that all share
  std::vector<std::string> arguments = {};
  std::vector<std::pair<std::string, std::string>> environment = {};
  std::vector<int> ignored_signals = {};
  bool on_terminal = false;  // a pseudo-terminal of its own as stdin, stdout and stderr
};

struct Result {
  int exit_code = -1;  // -1: it was killed by a signal itself
  std::string out;     // on a terminal: everything
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
  /// `zerorun` with exactly these arguments.
  explicit Launched(std::vector<std::string> arguments);
  ~Launched();
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& folder() const { return folder_; }
  void signal(int signal) const;
  void type(const std::string& keys) const;  // on a terminal
  void create_file(const std::string& name) const;

  // These give up after some seconds and fail the test.
  void wait_for_file(const std::string& name) const;
  void wait_for_output(const std::string& text);
  void wait_for_error(const std::string& text);
  void wait_until_nothing_is_left() const;
  Result finish(double seconds = 20);
  /// Waits until this job or `other` has ended: whether it is this one.
  bool ends_first(Launched& other);
  /// As finish(), but nobody reads what it prints.
  Result finish_unread(double seconds);
  /// Nobody will ever read stdout again.
  void close_output();

  /// Processes of the job other than the launcher and zombies.
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

/// True unless it is gone or a zombie.
bool is_alive(pid_t pid);
/// Zombies among the children of `parent`.
int count_zombies(pid_t parent);

}  // namespace zerorun::testing
