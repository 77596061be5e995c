// Tests which keepers of held memory the launcher takes (HostKeepers), with fakes of them.
#include "launcher/hosts/host_keepers.h"

#include <poll.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "base/seal.h"
#include "launcher/hosts/frame_socket.h"
#include "launcher/hosts/handshake.h"
#include "launcher/hosts/job_part.h"
#include "launcher/hosts/launch_options.h"

namespace zerorun::testing {
using namespace launcher;
namespace {

using Catch::Matchers::Contains;
using Clock = std::chrono::steady_clock;

class Launcher {
 public:
  // Serves until the condition holds, or a little.
  template <typename Condition>
  bool serve_until(const Condition& condition) {
    for (const auto end = Clock::now() + std::chrono::seconds(3); Clock::now() < end;) {
      std::vector<pollfd> entries;
      keepers.append_poll_entries(entries);
      ::poll(entries.data(), entries.size(), 5);
      keepers.service();
      if (condition()) return true;
    }
    return false;
  }
  // What a keeper does that an agent has started with this order.
  FrameSocket connect(int node, const KeeperOrder& order) {
    auto connected = std::async(std::launch::async, [&] {
      return connect_to_launcher({"127.0.0.1"}, order.port, Seal(order.ticket),
                                 Clock::now() + std::chrono::seconds(3), [] { return true; });
    });
    REQUIRE(serve_until(
        [&] { return connected.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
    FrameSocket socket(connected.get());
    socket.send(FrameType::hello, encode(AgentHello{"1", node, "here", ""}));
    socket.send(FrameType::keeper, encode(KeeperHello{order.tag, place_of(order), 4711, 12}));
    return socket;
  }
  static std::string place_of(const KeeperOrder& order) { return "memory " + order.tag + " 1 /a /b"; }
  // The frame that the keeper gets.
  std::optional<FrameType> answer(FrameSocket& socket) {
    std::optional<FrameType> type;
    serve_until([&] {
      socket.service();
      if (const std::optional<Frame> frame = socket.next()) type = frame->type;
      return type.has_value();
    });
    return type;
  }

  Console console{{"agent"}, true};
  HostKeepers keepers{{{"worker-0", {0}}, {"worker-1", {0}}}, 5, console};
};

}  // namespace

TEST_CASE("the launcher takes the keepers that the last agents have started, and no earlier ones") {
  Launcher launcher;
  HostKeepers& keepers = launcher.keepers;
  const KeeperOrder zero = keepers.order_for(0), first = keepers.order_for(1);
  CHECK(first.there.empty());
  CHECK_FALSE(keepers.is_ready(1, first.tag));
  FrameSocket of_zero = launcher.connect(0, zero), of_one = launcher.connect(1, first);
  REQUIRE(
      launcher.serve_until([&] { return keepers.is_ready(0, zero.tag) && keepers.is_ready(1, first.tag); }));
  CHECK(keepers.text_for(0) == "5 " + Launcher::place_of(zero) + " keeper worker-1 127.0.0.1 4711 1");
  CHECK(keepers.text_for(1) == "5 keeper worker-0 127.0.0.1 4711 1 " + Launcher::place_of(first));
  CHECK(keepers.pid_of(1) == 12);
  keepers.tell_token("token");
  CHECK(launcher.answer(of_zero) == FrameType::token);
  CHECK(launcher.answer(of_one) == FrameType::token);

  // The next attempt finds them. One that an agent of an earlier attempt has started connects late.
  const KeeperOrder second = keepers.order_for(1);
  CHECK(second.there == Launcher::place_of(first));
  CHECK(second.tag != first.tag);
  CHECK(keepers.is_ready(1, ""));
  CHECK_FALSE(keepers.is_ready(1, second.tag));
  FrameSocket late = launcher.connect(1, first);
  CHECK(launcher.answer(late) == FrameType::refusal);
  CHECK(keepers.is_ready(1, ""));

  // The agent has not found the one that was there.
  FrameSocket next = launcher.connect(1, second);
  REQUIRE(launcher.serve_until([&] { return keepers.is_ready(1, second.tag); }));
  CHECK(launcher.answer(of_one) == FrameType::end);
  CHECK(keepers.order_for(1).there == Launcher::place_of(second));

  next.close();
  CHECK(launcher.serve_until([&] { return !keepers.is_ready(1, ""); }));
  CHECK(keepers.order_for(1).there.empty());
  of_zero.close();
  keepers.end();
  CHECK_FALSE(keepers.is_ready(0, ""));
}

TEST_CASE("a keeper of a node that the job does not have is not taken, nor one that says nonsense") {
  Launcher launcher;
  KeeperOrder order = launcher.keepers.order_for(0);
  const FrameSocket far = launcher.connect(7, order), negative = launcher.connect(-1, order);
  order.tag.clear();
  FrameSocket nameless = launcher.connect(0, order);
  CHECK(launcher.answer(nameless) == FrameType::refusal);
  FrameSocket other = launcher.connect(1, launcher.keepers.order_for(0));
  CHECK(launcher.answer(other) == FrameType::refusal);
  CHECK_FALSE(launcher.keepers.is_ready(0, ""));
  CHECK_FALSE(launcher.keepers.is_ready(1, ""));
}

TEST_CASE("only hosts whose keepers can outlive their agents hold memory") {
  LaunchOptions options;
  options.max_restarts = options.hold_every = 1;
  check_restarts(options, Part::alone, 1);
  for (const Starter starter : {Starter::ssh, Starter::pdsh}) {
    options.starter = starter;
    check_restarts(options, Part::starts, 2);
  }
  for (const Starter starter : {Starter::openmpi, Starter::mpich, Starter::slurm}) {
    options.starter = starter;
    CHECK_THROWS_WITH(check_restarts(options, Part::starts, 2),
                      Contains("--hold_every 1: a step of mpirun or srun ends with all of its processes"));
  }
  options.max_restarts = 0;
  for (const Part part : {Part::first, Part::joins})
    CHECK_THROWS_WITH(check_restarts(options, part, 2),
                      Contains("only hosts whose agents this launcher starts"));
}

}  // namespace zerorun::testing
