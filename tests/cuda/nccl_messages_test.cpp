// Tests messages over NCCL with a fake NCCL and a fake CUDA, which move no values: which calls are made, in
// which order and on which communicator, and errors. Two ranks live in the test's thread: nothing here waits
// for another rank.
#include "cuda/nccl_messages.h"

#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>

#include "base/error.h"
#include "comm/thread_communicator.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/cuda/fake_nccl.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using namespace std::chrono_literals;
using testing::fake_cuda;
using testing::fake_nccl;
using Calls = std::vector<std::string>;

// One rank with a communicator for collectives, to which its messages belong.
struct MessageRank {
  MessageRank(std::shared_ptr<Communicator> communicator, bool blocking)
      : control(std::move(communicator)),
        comms(std::make_shared<NcclComms>(0)),
        probe(0, comms),
        watchdog({.rank = control->rank(), .world_size = 2, .timeout = control->timeout(), .period = 1ms},
                 probe, nullptr),
        messages({*control, *control, watchdog, probe, [] { return cudaStream_t{}; }}, 0,
                 {.blocking = blocking}) {
    watchdog.start();
    const size_t slot = watchdog.begin_on_host("connecting");
    comms->connect(NcclComms::make_ids(1), {.rank = control->rank(), .world_size = 2, .blocking = blocking},
                   watchdog, slot);
    watchdog.end(slot);
  }
  ~MessageRank() { watchdog.stop(); }

  int other() const { return 1 - control->rank(); }
  MessageCall call(bool is_send, int64_t numel, const std::string& label) {
    const int own = control->rank();
    return {is_send, at::zeros({numel}),           is_send ? own : other(), is_send ? other() : own,
            label,   ++(is_send ? sent : received)};
  }

  std::shared_ptr<Communicator> control;
  std::shared_ptr<NcclComms> comms;
  StreamProbe probe;
  NcclWatchdog watchdog;
  NcclMessages messages;
  uint64_t sent = 0;
  uint64_t received = 0;
};

struct TwoRanks {
  explicit TwoRanks(bool blocking = true, std::chrono::milliseconds timeout = 60s)
      : world((fake_nccl().reset(), fake_cuda().events_pass = true, make_thread_communicators(2, timeout))),
        first(world[0], blocking),
        second(world[1], blocking) {}
  void connect() {
    first.messages.connect(1, NcclComms::make_ids(NcclMessages::kDirections));
    second.messages.connect(0, NcclComms::make_ids(NcclMessages::kDirections));
  }

  std::vector<std::shared_ptr<Communicator>> world;
  MessageRank first;   // communicator 0 for collectives, 2 and 3 for messages up and down
  MessageRank second;  // 1, 4 and 5
};

// The fake's GPU is idle only when the aborts of all communicators have begun.
void abort_both(TwoRanks& ranks) {
  std::thread other([&] { ranks.second.probe.abort(); });
  ranks.first.probe.abort();
  other.join();
}

Calls calls_since(size_t begin) {
  const Calls done = fake_nccl().done();
  return {done.begin() + static_cast<ptrdiff_t>(begin), done.end()};
}

}  // namespace

TEST_CASE("nccl messages: each direction of a pair has a communicator, connected before the first message") {
  for (const bool blocking : {true, false}) {
    TwoRanks ranks(blocking);
    ranks.connect();
    CHECK(fake_nccl().done() == Calls{"connect 0", "connect 1", "connect 2", "connect 3", "send 2",
                                      "receive 3", "connect 4", "connect 5", "receive 4", "send 5"});
    // The call that connects the ranks waits for the other one, so it is in a helper thread if NCCL blocks.
    CHECK(fake_nccl().done_here(4) == !blocking);
    ranks.first.messages.send(ranks.first.call(true, 8, "a"))->wait();
    ranks.second.messages.send(ranks.second.call(true, 8, "b"))->wait();
    CHECK(calls_since(10) == Calls{"send 2", "send 5"});
    CHECK(fake_nccl().done_here(10));
    CHECK(fake_nccl().violations().empty());
    abort_both(ranks);
  }
}

TEST_CASE("nccl messages: a receive that is posted ahead starts nothing before its sender has sent") {
  TwoRanks ranks;
  ranks.connect();
  const size_t begin = fake_nccl().done().size();
  const MessageCall receive = ranks.second.call(false, 8, "a");
  const auto announcement = ranks.second.messages.announce(receive);
  CHECK(calls_since(begin).empty());
  ranks.first.messages.send(ranks.first.call(true, 8, "a"))->wait();
  announcement->wait();
  ranks.second.messages.take(receive);
  CHECK(calls_since(begin) == Calls{"send 2", "receive 4"});
  CHECK_FALSE(ranks.second.watchdog.broken());
}

TEST_CASE("nccl messages: an empty message is announced and not transferred") {
  TwoRanks ranks;
  ranks.connect();
  const size_t begin = fake_nccl().done().size();
  ranks.first.messages.send(ranks.first.call(true, 0, "a"))->wait();
  const MessageCall receive = ranks.second.call(false, 0, "a");
  ranks.second.messages.announce(receive)->wait();
  ranks.second.messages.take(receive);
  CHECK(calls_since(begin).empty());
}

TEST_CASE("nccl messages: ranks that disagree both get an error, and the receiver starts nothing") {
  TwoRanks ranks;
  ranks.connect();
  const size_t begin = fake_nccl().done().size();
  const auto send = ranks.first.messages.send(ranks.first.call(true, 8, "a"));
  const auto announcement = ranks.second.messages.announce(ranks.second.call(false, 9, "a"));
  for (Work* work : {send.get(), announcement.get()}) {
    CHECK_THROWS_WITH(work->wait(),
                      StartsWith("ranks disagree on message 1 from rank 0 to rank 1: rank 0 sends a, 8 "
                                 "elements of Float on a GPU") &&
                          Contains("rank 1 receives a, 9 elements of Float on a GPU"));
  }
  CHECK(calls_since(begin) == Calls{"send 2"});
}

TEST_CASE("nccl messages: a send beyond the room waits until there is some, or fails at the deadline") {
  TwoRanks ranks(true, 200ms);
  ranks.connect();
  fake_cuda().events_pass = false;
  for (uint64_t i = 0; i < kMostMessages; ++i)
    ranks.first.messages.send(ranks.first.call(true, 8, "a"))->wait();
  CHECK_THROWS_WITH((void)ranks.first.messages.send(ranks.first.call(true, 8, "one more")),
                    StartsWith("send of one more (message 65 from rank 0 to rank 1): rank 1 has not received "
                               "earlier messages, of which at most 64"));
  fake_cuda().events_pass = true;
  const size_t begin = fake_nccl().done().size();
  ranks.second.messages.announce(ranks.second.call(false, 8, "a"))->wait();  // room in `control` too
  ranks.first.messages.send(ranks.first.call(true, 8, "again"))->wait();
  CHECK(calls_since(begin) == Calls{"send 2"});
}

TEST_CASE("nccl messages: a pair that was not connected is an error that says what to call") {
  TwoRanks ranks;
  CHECK_THROWS_WITH(
      (void)ranks.first.messages.send(ranks.first.call(true, 8, "a")),
      StartsWith("ranks 0 and 1 send each other tensors on GPUs") && Contains("open_messages()"));
  CHECK_THROWS_AS((void)ranks.second.messages.announce(ranks.second.call(false, 8, "a")), UserError);
}

TEST_CASE("nccl messages: a failure aborts the communicators of messages with the others") {
  TwoRanks ranks;
  ranks.connect();
  fake_cuda().events_pass = false;
  const MessageCall receive = ranks.second.call(false, 8, "a");
  ranks.first.messages.send(ranks.first.call(true, 8, "a"))->wait();
  ranks.second.messages.announce(receive)->wait();
  ranks.second.messages.take(receive);
  std::thread other([&] { ranks.first.probe.abort(); });
  ranks.second.watchdog.fail(ranks.second.watchdog.begin_on_host("a test"), "a failure");
  other.join();
  const Calls done = fake_nccl().done();
  for (const char* aborted : {"abort 1", "abort 4", "abort 5"}) CHECK(std::ranges::count(done, aborted) == 1);
  CHECK_THROWS_AS(ranks.second.watchdog.check(), CommError);
}

}  // namespace zerorun
