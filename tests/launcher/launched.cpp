#include "tests/launcher/launched.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <sstream>
#include <thread>

namespace zerorun::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kPatience = 20;
constexpr char kZerorun[] = ZERORUN_BINARY_DIR "/bin/zerorun";

void sleep_ms(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

bool within(double seconds, const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (Clock::now() >= deadline) return false;
    sleep_ms(10);
  }
  return true;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Stat {
  std::string name;
  char state;
  pid_t parent;
};

std::optional<Stat> stat_of(pid_t pid) {
  const std::string text = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return std::nullopt;
  Stat stat{text.substr(open + 1, close - open - 1), '?', 0};
  std::istringstream(text.substr(close + 1)) >> stat.state >> stat.parent;
  return stat;
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> pids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos) pids.push_back(std::stoi(name));
  }
  return pids;
}

}  // namespace

Launched::Launched(Setup setup) {
  std::vector<std::string> arguments = setup.options;
  for (std::string word : {std::string("/bin/sh"), std::string("-c"), setup.script, std::string("sh")}) {
    arguments.push_back(word);
  }
  arguments.insert(arguments.end(), setup.arguments.begin(), setup.arguments.end());
  start(setup, arguments);
}

Launched::Launched(std::vector<std::string> arguments) {
  start({}, arguments);
}

void Launched::start(const Setup& setup, const std::vector<std::string>& arguments) {
  char folder[] = "/tmp/zerorun_test_XXXXXX";
  REQUIRE(mkdtemp(folder));
  folder_ = folder;
  mark_ = "ZERORUN_TEST_MARK=" + folder_;

  int in[2], out[2], err[2];
  for (int* ends : {in, out, err}) REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  int master = -1;
  pid_ = setup.on_terminal ? ::forkpty(&master, nullptr, nullptr, nullptr) : ::fork();
  REQUIRE(pid_ >= 0);
  if (pid_ == 0) {
    if (setup.on_terminal) {
      termios settings;
      ::tcgetattr(1, &settings);
      settings.c_oflag &= ~OPOST;  // no translation of '\n' to "\r\n"
      settings.c_lflag &= ~ECHO;
      ::tcsetattr(1, TCSANOW, &settings);
    } else {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::dup2(err[1], 2);
    }
    ::close_range(3, ~0U, 0);
    for (const char* name : {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE"})
      ::unsetenv(name);
    // A machine may have fewer GPUs than a test has ranks, which do not use them.
    ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    ::setenv("ZERORUN_TEST_MARK", folder_.c_str(), 1);
    ::setenv("DIR", folder_.c_str(), 1);
    for (const auto& [name, value] : setup.environment) ::setenv(name.c_str(), value.c_str(), 1);
    for (int signal : {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGCHLD, SIGTERM, SIGIO}) ::signal(signal, SIG_DFL);
    for (int signal : setup.ignored_signals) ::signal(signal, SIG_IGN);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    std::vector<char*> argv = {const_cast<char*>(kZerorun)};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(kZerorun, argv.data());
    _exit(99);
  }
  for (int fd : {in[0], out[1], err[1]}) ::close(fd);
  in_ = in[1];  // kept open and empty: a rank that reads from it waits forever
  err_ = err[0];
  out_ = out[0];
  if (setup.on_terminal) {
    ::close(out_);
    out_ = master;
  }
  for (int fd : {out_, err_}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
}

Launched::~Launched() {
  if (!ended_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const Process& process : processes()) ::kill(process.pid, SIGKILL);
  for (int fd : {in_, out_, err_}) ::close(fd);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void Launched::signal(int signal) const {
  REQUIRE(::kill(pid_, signal) == 0);
}

void Launched::type(const std::string& keys) const {
  REQUIRE(::write(out_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
}

void Launched::create_file(const std::string& name) const {
  std::ofstream(folder_ + "/" + name) << "";
}

void Launched::wait_for_file(const std::string& name) const {
  INFO("waiting for the file " << name);
  REQUIRE(within(kPatience, [&] { return std::filesystem::exists(folder_ + "/" + name); }));
}

void Launched::wait_for_output(const std::string& text) {
  const bool found = within(kPatience, [&] {
    read_for(0);
    return out_text_.find(text) != std::string::npos;
  });
  INFO("waiting for '" << text << "' on stdout: " << out_text_ << "\nstderr: " << err_text_);
  REQUIRE(found);
}

void Launched::wait_for_error(const std::string& text) {
  const bool found = within(kPatience, [&] {
    read_for(0);
    return err_text_.find(text) != std::string::npos;
  });
  INFO("waiting for '" << text << "' on stderr: " << err_text_);
  REQUIRE(found);
}

void Launched::wait_until_nothing_is_left() const {
  const bool gone = within(5, [&] { return processes().empty(); });
  std::string left;
  for (const Process& process : processes()) left += process.name + " " + std::to_string(process.pid) + "; ";
  INFO("still there: " << left);
  REQUIRE(gone);
}

Result Launched::finish(double seconds) {
  const bool ended = within(seconds, [&] {
    read_for(5);
    return has_ended();
  });
  INFO("stdout: " << out_text_.substr(0, 2000) << "\nstderr: " << err_text_.substr(0, 2000));
  REQUIRE(ended);
  read_for(0);
  return {WIFEXITED(status_) ? WEXITSTATUS(status_) : -1, out_text_, err_text_};
}

bool Launched::ends_first(Launched& other) {
  REQUIRE(within(kPatience, [&] { return has_ended() || other.has_ended(); }));
  return has_ended();
}

Result Launched::finish_unread(double seconds) {
  REQUIRE(within(seconds, [&] { return has_ended(); }));
  read_for(0);
  return {WIFEXITED(status_) ? WEXITSTATUS(status_) : -1, out_text_, err_text_};
}

void Launched::close_output() {
  ::close(out_);
  out_ = -1;
}

std::vector<Process> Launched::processes() const {
  std::vector<Process> found;
  for (pid_t pid : all_processes()) {
    if (pid == pid_) continue;
    const std::string environment =
        read_file("/proc/" + std::to_string(pid) + "/environ");  // empty for a zombie
    if (environment.find(mark_) == std::string::npos) continue;
    if (auto stat = stat_of(pid); stat && stat->state != 'Z')
      found.push_back({pid, stat->parent, stat->name});
  }
  return found;
}

void Launched::read_for(int milliseconds) {
  pollfd entries[] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  ::poll(entries, 2, milliseconds);
  char buffer[65536];
  for (auto [fd, text] : {std::pair{out_, &out_text_}, {err_, &err_text_}}) {
    for (ssize_t size; (size = ::read(fd, buffer, sizeof buffer)) > 0;) text->append(buffer, size);
  }
}

bool Launched::has_ended() {
  if (!ended_) ended_ = ::waitpid(pid_, &status_, WNOHANG) == pid_;
  return ended_;
}

bool is_alive(pid_t pid) {
  auto stat = stat_of(pid);
  return stat && stat->state != 'Z';
}

int count_zombies(pid_t parent) {
  int zombies = 0;
  for (pid_t pid : all_processes()) {
    auto stat = stat_of(pid);
    if (stat && stat->parent == parent && stat->state == 'Z') ++zombies;
  }
  return zombies;
}

}  // namespace zerorun::testing
