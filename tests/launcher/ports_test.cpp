// Tests the port on which ranks meet: the launcher listens on the port as soon as it has chosen it, and
// passes the socket to rank 0.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/listening.h"
#include "base/port_holder.h"
#include "tests/launcher/launched.h"

using Catch::Matchers::Contains;
using Catch::Matchers::Matches;
using zerorun::listen_on;
using zerorun::ListeningSocket;
using zerorun::UserError;
using zerorun::testing::Launched;
using zerorun::testing::Result;

namespace {

// Connects to the port. Returns 0, or the error.
int error_of_connection(const std::string& address, int port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<in_port_t>(port));
  inet_pton(AF_INET, address.c_str(), &name.sin_addr);
  const zerorun::UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) == 0 ? 0 : errno;
}

int free_port() {
  return listen_on("127.0.0.1", 0).port;
}

// Advice for a port that the user has chosen.
constexpr char kLeaveOut[] = "leave --master_port out";

}  // namespace

TEST_CASE("the process that uses a port is looked for at the address") {
  for (const std::string address : {"127.0.0.1", "::1", ""}) {
    CAPTURE(address);
    if (address == "::1" && ::access("/proc/net/if_inet6", R_OK) != 0) continue;
    const ListeningSocket own = listen_on(address, 0);
    const std::string process = "process " + std::to_string(::getpid()) + " ";
    CHECK_THAT(zerorun::listener_on(address, own.port), Contains(process));
    CHECK_THAT(zerorun::listener_on("", own.port), Contains(process));
    CHECK_THAT(zerorun::listener_on("0.0.0.0", own.port), Contains(process));
    CHECK(zerorun::listener_on("127.0.0.2", own.port).empty() == !address.empty());
  }
}

TEST_CASE("listening: a free port, on one address only") {
  const ListeningSocket first = listen_on("127.0.0.1", 0);
  const ListeningSocket second = listen_on("127.0.0.1", 0);
  CHECK(first.port != second.port);
  CHECK(error_of_connection("127.0.0.1", first.port) == 0);
  CHECK(error_of_connection("127.0.0.2", first.port) == ECONNREFUSED);
  const ListeningSocket everywhere = listen_on("", 0);
  CHECK(error_of_connection("127.0.0.1", everywhere.port) == 0);
  CHECK(error_of_connection("127.0.0.2", everywhere.port) == 0);
  CHECK(listen_on("localhost", 0).port > 0);
}

TEST_CASE("listening: errors name a port in use or another machine's address, with a remedy") {
  const ListeningSocket taken = listen_on("127.0.0.1", 0);
  const std::string name = "127.0.0.1:" + std::to_string(taken.port);
  CHECK_THROWS_AS(listen_on("127.0.0.1", taken.port), UserError);
  CHECK_THROWS_WITH(listen_on("127.0.0.1", taken.port),
                    Contains(name) && Contains("the port is in use") && Contains("--master_port"));
  CHECK_THROWS_WITH(listen_on("", taken.port), Contains("the port is in use"));
  CHECK_THROWS_WITH(listen_on("192.0.2.1", 0), Contains("192.0.2.1") && Contains("not this machine's"));
  CHECK_THROWS_AS(listen_on("no-such-host.invalid", 0), UserError);
}

TEST_CASE("listening: the first one is found before anybody listens") {
  const ListeningSocket first = zerorun::reserve_port("127.0.0.1", 0);
  CHECK_THROWS_AS(zerorun::listen_as_first("127.0.0.1", first.port), UserError);
  const ListeningSocket other = zerorun::listen_as_first("127.0.0.1", 0);
  CHECK_THROWS_AS(zerorun::listen_as_first("127.0.0.1", other.port), UserError);
  CHECK(error_of_connection("127.0.0.1", other.port) == 0);
}

TEST_CASE("listening: the error names the process that has the port") {
  const std::string me = "process " + std::to_string(::getpid()) + " (launcher_ranks) of user ";
  const ListeningSocket listens = listen_on("127.0.0.1", 0);
  CHECK_THROWS_WITH(listen_on("127.0.0.1", listens.port), Contains("the port is in use, by " + me));
  const ListeningSocket reserves = zerorun::reserve_port("127.0.0.1", 0);
  CHECK_THROWS_WITH(zerorun::reserve_port("127.0.0.1", reserves.port),
                    Contains("the port is in use, by another job, " + me) && Contains(kLeaveOut));
  // Launchers that users start on each host have a fixed port, also without --master_port.
  for (const int port : {listens.port, reserves.port}) {
    CHECK_THROWS_WITH(zerorun::listen_as_first("127.0.0.1", port), Contains("the port is in use, by ") &&
                                                                       Contains("--rdzv_endpoint") &&
                                                                       !Contains(kLeaveOut));
  }
}

TEST_CASE("listening: the error about a reserved port that another process takes is true of a chosen one") {
  for (const std::string address : {"127.0.0.1", ""}) {
    CAPTURE(address);
    const ListeningSocket reserved = zerorun::reserve_port(address, 0);
    std::array<int, 2> ready{};
    REQUIRE(::pipe(ready.data()) == 0);
    const pid_t stranger = ::fork();
    if (stranger == 0) {
      const ListeningSocket taken = listen_on(address, reserved.port);
      [[maybe_unused]] const ssize_t written = ::write(ready[1], "x", 1);
      ::pause();
      ::_exit(0);
    }
    char byte = 0;
    CHECK(::read(ready[0], &byte, 1) == 1);
    const int fd = ::dup(reserved.fd.get());  // inherited by rank 0
    ::setenv(zerorun::kListenVariable, std::to_string(fd).c_str(), 1);
    CHECK_THROWS_WITH(zerorun::take_inherited_socket(reserved.port),
                      Contains((address.empty() ? "any address" : address) + ":") &&
                          Contains("by process " + std::to_string(stranger) + " (launcher_ranks) of user ") &&
                          Contains("zerorun had reserved it; start the job again") && !Contains(kLeaveOut));
    ::unsetenv(zerorun::kListenVariable);
    ::kill(stranger, SIGKILL);
    CHECK(::waitpid(stranger, nullptr, 0) == stranger);
    for (const int end : ready) ::close(end);
  }
}

// In a network of its own, which has few free ports.
TEST_CASE("listening: a free port that another user has claimed is not chosen") {
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr int kSkipped = 77;
    const uid_t user = ::geteuid();
    if (::unshare(user == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET) != 0) ::_exit(kSkipped);
    std::ofstream range("/proc/sys/net/ipv4/ip_local_port_range");
    if (!(range << "40000 40003" << std::flush)) ::_exit(kSkipped);
    std::vector<ListeningSocket> claimed;
    for (const int port : {40000, 40001, 40003}) {
      claimed.push_back(zerorun::reserve_port("", port));
      claimed.back().fd.reset();
    }
    try {
      for (int round = 0; round < 10; ++round) {
        if (zerorun::reserve_port("", 0).port != 40002) ::_exit(1);
      }
      claimed.push_back(zerorun::reserve_port("", 40002));
    } catch (const UserError&) {
      ::_exit(2);
    }
    try {
      zerorun::reserve_port("", 0);
      ::_exit(3);
    } catch (const zerorun::PortTaken& error) {
      ::_exit(std::string(error.what()).find("no port is free") != std::string::npos ? 0 : 4);
    }
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) {
    WARN("no network of its own: skipped");
  } else {
    CHECK(WEXITSTATUS(status) == 0);
  }
}

TEST_CASE("listening: a socket is inherited once, and only if it is the right one") {
  ListeningSocket socket = listen_on("127.0.0.1", 0);
  const int fd = socket.fd.get();
  auto inherited = [&](const std::string& variable, int port, int flags) {
    REQUIRE(::fcntl(fd, F_SETFD, flags) == 0);
    ::setenv(zerorun::kListenVariable, variable.c_str(), 1);
    return zerorun::take_inherited_socket(port).release();
  };
  CHECK(inherited(std::to_string(fd), socket.port, 0) == fd);
  CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(zerorun::take_inherited_socket(socket.port).release() == -1);
  CHECK(inherited(std::to_string(fd), socket.port + 1, 0) == -1);
  const zerorun::UniqueFd file(::open("/dev/null", O_RDONLY));
  for (const std::string& text : {std::string(), std::string("x"), std::string("-1"), std::string("1"),
                                  std::to_string(fd) + " ", std::to_string(file.get())}) {
    CAPTURE(text);
    CHECK(inherited(text, socket.port, 0) == -1);
  }
  ::unsetenv(zerorun::kListenVariable);
  CHECK(zerorun::take_inherited_socket(socket.port).release() == -1);
}

TEST_CASE("rank 0 holds the job's port") {
  Launched job({.options = {"--num_gpus", "2"},
                .script = "while [ ! -e $DIR/go ]; do sleep 0.05; done; "
                          "echo $RANK ${ZERORUN_LISTEN_FD-none} $(stat -Lc %F /dev/fd/3)"});
  job.create_file("go");
  Result result = job.finish();
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("0 3 socket\n") && Contains("1 none\n"));
}

TEST_CASE("a port that is in use is reported at once, and the job does not start") {
  const ListeningSocket taken = listen_on("127.0.0.1", 0);
  Result result =
      Launched({.options = {"--master_port", std::to_string(taken.port)}, .script = "echo ran"}).finish();
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  CHECK_THAT(result.err, Contains("127.0.0.1:" + std::to_string(taken.port)) &&
                             Contains("the port is in use") && Contains("--master_port"));
}

TEST_CASE("of two jobs that start at once on one port, one runs and the other gets an error") {
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    const std::string port = std::to_string(free_port());
    const zerorun::testing::Setup setup = {
        .options = {"--num_gpus", "2", "--master_port", port},
        .script = "echo up; while [ ! -e $DIR/go ]; do sleep 0.02; done; echo done"};
    std::array<std::unique_ptr<Launched>, 2> jobs = {std::make_unique<Launched>(setup),
                                                     std::make_unique<Launched>(setup)};
    const int loser = jobs[0]->ends_first(*jobs[1]) ? 0 : 1;
    Result told = jobs[loser]->finish();
    CHECK(told.exit_code == 2);
    CHECK(told.out.empty());
    CHECK_THAT(told.err, Contains(port) && Contains("the port is in use, by another job"));
    Launched& other = *jobs[1 - loser];
    other.wait_for_output("up");
    other.create_file("go");
    Result result = other.finish();
    CHECK(result.exit_code == 0);
    // Both ranks must run to their end, but one of them may start after the other has ended.
    CHECK_THAT(result.out, Matches("(.*(up|done)\n){4}") && Matches("[^]*up\n[^]*up\n[^]*") &&
                               Matches("[^]*done\n[^]*done\n[^]*"));
  }
}
