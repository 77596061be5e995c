#include "tests/comm/rank_processes.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <deque>
#include <stdexcept>

#include "base/error.h"
#include "base/listening.h"

namespace zerorun::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct Child {
  pid_t pid = 0;
  int pipe = -1;  // -1 when it has been read to its end
  Clock::time_point start;
  bool awaited = false;
  Ending ending;
};

std::string run_body(const ProcessBody& body, int index) {
  try {
    return body(index);
  } catch (const UserError& error) {
    return std::string("UserError: ") + error.what();
  } catch (const CommError& error) {
    return std::string("CommError: ") + error.what();
  } catch (const std::exception& error) {
    return std::string("exception: ") + error.what();
  }
}

Child start_child(const ProcessBody& body, int index, bool awaited) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe failed");
  Child child{.pid = fork(), .pipe = ends[0], .start = Clock::now(), .awaited = awaited, .ending = {}};
  if (child.pid < 0) throw std::runtime_error("fork failed");
  if (child.pid > 0) {
    close(ends[1]);
    return child;
  }
  close(ends[0]);
  const std::string text = run_body(body, index);
  const bool written = write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
  _exit(written ? 0 : 1);  // runs no destructors: the child has a copy of the parent's Catch session
}

// Takes what is in the child's pipe. The pipe is closed when the child ends.
void read_some(Child& child) {
  char buffer[4096];
  const ssize_t got = read(child.pipe, buffer, sizeof buffer);
  if (got > 0) return void(child.ending.text.append(buffer, static_cast<size_t>(got)));
  child.ending.seconds = std::chrono::duration<double>(Clock::now() - child.start).count();
  close(child.pipe);
  child.pipe = -1;
}

// Reads the pipes of the awaited children until these have ended, or until `end`.
void await(std::vector<Child>& children, Clock::time_point end) {
  for (;;) {
    std::vector<Child*> running;
    std::vector<pollfd> pipes;
    for (Child& child : children) {
      if (!child.awaited || child.pipe < 0) continue;
      running.push_back(&child);
      pipes.push_back({.fd = child.pipe, .events = POLLIN, .revents = 0});
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    if (pipes.empty() || left.count() <= 0) return;
    if (poll(pipes.data(), pipes.size(), static_cast<int>(left.count())) <= 0) continue;
    for (size_t i = 0; i < pipes.size(); ++i) {
      if (pipes[i].revents != 0) read_some(*running[i]);
    }
  }
}

// Kills the child if it still runs.
Ending end(Child& child) {
  if (child.pipe >= 0) {
    if (child.awaited) child.ending.text += " [still running: killed]";
    close(child.pipe);
  }
  kill(child.pid, SIGKILL);  // no effect on processes that have ended and are not yet waited for
  waitpid(child.pid, &child.ending.status, 0);
  return child.ending;
}

sockaddr_in local_address(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Returns a socket bound to a port of 127.0.0.1 that the system chose.
int bind_any_port(int& port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = local_address(0);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (fd < 0 || bind(fd, generic, length) != 0 || getsockname(fd, generic, &length) != 0) {
    throw std::runtime_error("no free port on 127.0.0.1");
  }
  port = ntohs(address.sin_port);
  return fd;
}

}  // namespace

std::vector<std::vector<Ending>> run_jobs(const std::vector<ProcessJob>& jobs, std::chrono::seconds limit) {
  std::vector<Child> children;
  for (const ProcessJob& job : jobs) {
    for (int index = 0; index < job.count; ++index) {
      children.push_back(start_child(job.body, index, job.awaited < 0 || index < job.awaited));
    }
  }
  await(children, Clock::now() + limit);
  std::vector<std::vector<Ending>> endings;
  auto child = children.begin();
  for (const ProcessJob& job : jobs) {
    for (endings.emplace_back(); std::ssize(endings.back()) < job.count; ++child) {
      endings.back().push_back(end(*child));
    }
  }
  return endings;
}

std::vector<Ending> run_processes(int count, const ProcessBody& body, int awaited,
                                  std::chrono::seconds limit) {
  return run_jobs({{.count = count, .body = body, .awaited = awaited}}, limit).front();
}

int free_port() {
  constexpr size_t kKept = 64;  // more than there are jobs at once; some programs ask for thousands
  static std::deque<ListeningSocket> reserved;
  if (reserved.size() == kKept) reserved.pop_front();
  return reserved.emplace_back(reserve_port("127.0.0.1", 0)).port;
}

OccupiedPort::OccupiedPort() : socket_(bind_any_port(port_)) {
  if (listen(socket_, 1) != 0) throw std::runtime_error("listen failed");
}

OccupiedPort::~OccupiedPort() {
  close(socket_);
}

void set_rank_variables(int rank, int world_size, int port, std::chrono::milliseconds timeout, int per_host) {
  auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(per_host > 0 ? rank % per_host : rank));
  if (per_host > 0) set("LOCAL_WORLD_SIZE", std::to_string(per_host));
  set("WORLD_SIZE", std::to_string(world_size));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  set("ZERORUN_TIMEOUT", std::to_string(static_cast<double>(timeout.count()) / 1000));
  set("ZERORUN_DEVICE", "cpu");
}

}  // namespace zerorun::testing
