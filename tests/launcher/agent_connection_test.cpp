// Tests the connections between the launcher and its agents: frames, and greetings with and without the right
// ticket (handshake.h).
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/listening.h"
#include "base/seal.h"
#include "launcher/hosts/agent_link.h"
#include "launcher/hosts/frame_socket.h"
#include "launcher/hosts/handshake.h"
#include "launcher/hosts/joined_launchers.h"
#include "tests/launcher/tcp_ends.h"

using Catch::Matchers::Contains;
using zerorun::UniqueFd;
using zerorun::UserError;
using zerorun::testing::connected;
using namespace zerorun::launcher;

namespace {

// Answers up to `connections` connections, one after another. Returns whether one of them
// has proved that it knows `ticket`.
bool greets(const zerorun::ListeningSocket& listening, const zerorun::Seal& ticket, int connections) {
  for (int done = 0; done < connections; ++done) {
    AgentGreeting greeting(UniqueFd(::accept4(listening.fd.get(), nullptr, nullptr, SOCK_CLOEXEC)), ticket);
    while (greeting.service()) {
      if (greeting.is_done()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return false;
}

}  // namespace

TEST_CASE("frames arrive whole and in order, and an invalid frame closes the connection") {
  auto [first, second] = connected();
  FrameSocket sender(std::move(first));
  FrameSocket receiver(std::move(second));
  const std::string large(3 << 20, 'x');
  sender.send(FrameType::notice, "small");
  sender.send(FrameType::output, large);
  sender.send(FrameType::heartbeat);
  std::vector<Frame> frames;
  for (int round = 0; round < 10000 && frames.size() < 3; ++round) {
    sender.service();
    receiver.service();
    while (auto frame = receiver.next()) frames.push_back(std::move(*frame));
  }
  REQUIRE(frames.size() == 3);
  CHECK(frames[0].payload == "small");
  CHECK(frames[1].payload == large);
  CHECK(frames[2].type == FrameType::heartbeat);
  CHECK_FALSE(receiver.is_closed());

  auto [raw, other] = connected();
  FrameSocket strict(std::move(other));
  const std::string hostile("\xff\xff\xff\xff\x05 and more", 14);
  REQUIRE(::send(raw.get(), hostile.data(), hostile.size(), 0) == static_cast<ssize_t>(hostile.size()));
  for (int round = 0; round < 1000 && !strict.is_closed(); ++round) {
    strict.service();
    CHECK_FALSE(strict.next());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(strict.is_closed());
}

TEST_CASE("an agent and a launcher accept each other only if both have the ticket") {
  const zerorun::ListeningSocket listening = zerorun::listen_on("127.0.0.1", 0);
  const zerorun::Seal ticket("the ticket");
  const zerorun::Seal other("another ticket");
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::milliseconds(300); };
  const auto wanted = [] { return true; };
  {
    bool known = false;
    std::thread launcher([&] { known = greets(listening, ticket, 1); });
    const UniqueFd fd = connect_to_launcher({"127.0.0.1"}, listening.port, ticket, soon(), wanted);
    launcher.join();
    CHECK(fd.is_open());
    CHECK(known);
  }
  {
    bool known = true;
    std::thread launcher([&] { known = greets(listening, other, 2); });
    CHECK_THROWS_WITH(connect_to_launcher({"127.0.0.1"}, listening.port, ticket, soon(), wanted),
                      Contains("no launcher of this job answers there"));
    // greets() waits for two connections, but the agent may have connected only once. Then this is the second
    // connection.
    auto [client, server] = std::pair(UniqueFd(::socket(AF_INET, SOCK_STREAM, 0)), 0);
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    ::getsockname(listening.fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
    (void)::connect(client.get(), reinterpret_cast<sockaddr*>(&address), size);
    client.reset();
    launcher.join();
    CHECK_FALSE(known);
  }
  // Nobody waits for this agent any more.
  CHECK_THROWS_WITH(connect_to_launcher({"127.0.0.1"}, 1, ticket,
                                        std::chrono::steady_clock::time_point::max(), [] { return false; }),
                    Contains("127.0.0.1:1: Connection refused"));
  // A client that sends the right first bytes and a wrong code.
  auto [client, server] = connected();
  AgentGreeting greeting(std::move(server), ticket);
  const std::string hello = "zerorun agent 1\n" + std::string(16, 'n') + std::string(8, 'c');
  REQUIRE(::send(client.get(), hello.data(), hello.size(), 0) == static_cast<ssize_t>(hello.size()));
  bool open = true;
  for (int round = 0; round < 1000 && open; ++round) {
    open = greeting.service();
    REQUIRE_FALSE(greeting.is_done());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK_FALSE(open);
}

TEST_CASE(
    "a launcher that has joined learns whether the job is started again, or that it has lost the first one") {
  enum class Word { again, finished, none };
  for (const Word word : {Word::again, Word::finished, Word::none}) {
    auto [first, second] = connected();
    std::optional<JoinedLaunchers> joined(std::in_place);
    bool is_called = false;
    bool is_lost = false;
    std::thread other([&, fd = std::move(second)]() mutable {
      AgentLink link{FrameSocket(std::move(fd))};
      link.wait_for_word({});
      is_called = link.is_called_again();
      is_lost = link.is_lost();
    });
    if (word == Word::none) {
      first.reset();
    } else {
      joined->add(FrameSocket(std::move(first)));
      joined->service();
      if (word == Word::again) joined->call_again();
      joined.reset();
    }
    other.join();
    CHECK(is_called == (word == Word::again));
    CHECK(is_lost == (word == Word::none));
  }
}
