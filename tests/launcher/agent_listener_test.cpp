// Tests which connections the launcher accepts from agents while strangers connect too.
#include "launcher/hosts/agent_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/listening.h"
#include "base/seal.h"
#include "launcher/hosts/frame_socket.h"
#include "launcher/hosts/handshake.h"

namespace zerorun::testing {
using namespace launcher;
namespace {

using Clock = std::chrono::steady_clock;

// A connection that says nothing; with `greets`, one that greets and then says nothing.
UniqueFd stranger(int port, bool greets) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<in_port_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &name.sin_addr);
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) == 0);
  const std::string greeting = "zerorun agent 1\n" + std::string(16, 'x');
  if (greets) REQUIRE(::send(fd.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL) > 0);
  return fd;
}

// Returns the agents that `listener` has accepted within two seconds, or once there are `wanted`.
std::vector<NewAgent> serve(AgentListener& listener, size_t wanted) {
  std::vector<NewAgent> found;
  for (const auto end = Clock::now() + std::chrono::seconds(2);
       found.size() < wanted && Clock::now() < end;) {
    std::vector<pollfd> entries;
    listener.append_poll_entries(entries);
    ::poll(entries.data(), entries.size(), 10);
    for (NewAgent& agent : listener.service()) found.push_back(std::move(agent));
  }
  return found;
}

TEST_CASE("strangers that keep connections open do not keep agents out") {
  for (const bool greets : {false, true}) {
    CAPTURE(greets);
    const Seal ticket("the ticket");
    Console console({"agent"}, false);
    AgentListener listener(listen_on("127.0.0.1", 0), ticket, console);
    const int port = listener.port();
    std::vector<UniqueFd> strangers;
    for (int number = 0; number < 300; ++number) strangers.push_back(stranger(port, greets));
    const auto soon = Clock::now() + std::chrono::seconds(2);
    std::thread agent([&] {
      try {
        FrameSocket socket(connect_to_launcher({"127.0.0.1"}, port, ticket, soon, [] { return true; }));
        socket.send(FrameType::hello, encode(AgentHello{"1", 0, "here", ""}));
        while (Clock::now() < soon && !socket.is_closed()) {
          socket.service();
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      } catch (const std::exception&) {  // the check below fails
      }
    });
    CHECK(serve(listener, 1).size() == 1);  // closes the agent's connection, which ends its thread
    CHECK(listener.strangers() >= 300 - 128);
    listener.close();
    agent.join();
  }
}

}  // namespace
}  // namespace zerorun::testing
