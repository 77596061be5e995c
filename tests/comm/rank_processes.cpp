#include "tests/comm/rank_processes.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>

#include "base/error.h"

namespace zerorun::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct Child {
  pid_t pid = 0;
  int pipe = -1;
  Clock::time_point start;
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

Child start_child(const ProcessBody& body, int index) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe failed");
  Child child{.pid = fork(), .pipe = ends[0], .start = Clock::now()};
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

// Reads the child's pipe until the child ends, which closes the pipe. Returns false if the child has not
// ended at `end`.
bool read_to_the_end(Child& child, Ending& ending, Clock::time_point end) {
  char buffer[4096];
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    pollfd ready{.fd = child.pipe, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) == 0) return false;
    const ssize_t got = read(child.pipe, buffer, sizeof buffer);
    if (got <= 0) break;
    ending.text.append(buffer, static_cast<size_t>(got));
  }
  ending.seconds = std::chrono::duration<double>(Clock::now() - child.start).count();
  return true;
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

std::vector<Ending> run_processes(int count, const ProcessBody& body, int awaited,
                                  std::chrono::seconds limit) {
  std::vector<Child> children;
  std::vector<Ending> endings(count);
  for (int index = 0; index < count; ++index) children.push_back(start_child(body, index));
  const Clock::time_point end = Clock::now() + limit;
  for (int index = 0; index < (awaited < 0 ? count : awaited); ++index) {
    if (!read_to_the_end(children[index], endings[index], end))
      endings[index].text += " [still running: killed]";
  }
  for (int index = 0; index < count; ++index) {
    kill(children[index].pid, SIGKILL);  // no effect on processes that have ended and are not yet waited for
    waitpid(children[index].pid, &endings[index].status, 0);
    close(children[index].pipe);
  }
  return endings;
}

int free_port() {
  int port = 0;
  close(bind_any_port(port));
  return port;
}

OccupiedPort::OccupiedPort() : socket_(bind_any_port(port_)) {
  if (listen(socket_, 1) != 0) throw std::runtime_error("listen failed");
}

OccupiedPort::~OccupiedPort() {
  close(socket_);
}

void set_rank_variables(int rank, int world_size, int port, std::chrono::milliseconds timeout) {
  auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(world_size));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  set("ZERORUN_TIMEOUT", std::to_string(static_cast<double>(timeout.count()) / 1000));
  set("ZERORUN_DEVICE", "cpu");
}

}  // namespace zerorun::testing
