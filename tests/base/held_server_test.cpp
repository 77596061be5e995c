// Tests reads of held memory over hosts (base/held_server.h, held_client.h): what is read, and clients
// that do not know the token, send other things than requests, or stall.
#include "base/held_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/held_client.h"
#include "base/held_exchange.h"
#include "base/held_memory.h"
#include "base/listening.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 2;
const HeldPatience kShort{.connect = milliseconds(400), .read = milliseconds(400)};

// A keeper's memory and its server, which a thread serves.
class Keeper {
 public:
  Keeper()
      : memory_(kRanks, "test"),
        copies_(kRanks, "test"),
        server_(listen_on("127.0.0.1", 0), memory_.ranks(), copies_.ranks()) {
    std::signal(SIGPIPE, SIG_IGN);
    set_token("token");
    thread_ = std::jthread([this](const std::stop_token& end) {
      while (!end.stop_requested()) {
        std::vector<pollfd> entries;
        {
          const std::lock_guard lock(mutex_);
          if (is_served_) server_.service();
          server_.append_poll_entries(entries);
        }
        ::poll(entries.data(), entries.size(), 2);
      }
    });
  }
  void set_token(const std::string& token) {
    const std::lock_guard lock(mutex_);
    server_.set_token(token);
  }
  void stop_serving() {
    const std::lock_guard lock(mutex_);
    is_served_ = false;
  }
  int port() const { return server_.port(); }
  int file(int rank, int slot) const {
    return memory_.ranks()[static_cast<size_t>(rank)][static_cast<size_t>(slot)].get();
  }
  int copy(int rank, int slot) const {
    return copies_.ranks()[static_cast<size_t>(rank)][static_cast<size_t>(slot)].get();
  }
  HeldKeeper place() const {
    return {.host = "worker-1", .address = "127.0.0.1", .port = port(), .first_rank = 4, .ranks = kRanks};
  }

 private:
  HeldMemory memory_, copies_;
  HeldServer server_;
  std::mutex mutex_;
  bool is_served_ = true;
  std::jthread thread_;
};

std::string read(HeldClient& client, int rank, int slot, int64_t offset, size_t bytes) {
  std::string text(bytes, '?');
  const int64_t size = client.read(rank, slot, std::as_writable_bytes(std::span(text)), offset);
  text.resize(static_cast<size_t>(size));
  return text;
}

void fill(int file, const std::string& text, int64_t offset = 0) {
  REQUIRE(::pwrite(file, text.data(), text.size(), offset) == static_cast<ssize_t>(text.size()));
}

// A connection of something else than HeldClient.
UniqueFd connection(int port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<in_port_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &name.sin_addr);
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) == 0);
  return fd;
}

UniqueFd greeted(int port) {
  UniqueFd fd = connection(port);
  REQUIRE(greet(fd.get(), Seal("token"), kHeldWords, Clock::now() + std::chrono::seconds(5)));
  return fd;
}

void send_request(int fd, const HeldRequest& request, size_t bytes = sizeof(HeldRequest)) {
  REQUIRE(::send(fd, &request, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
}

bool is_closed_soon(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  char byte = 0;
  return ::poll(&entry, 1, 2000) == 1 && ::recv(fd, &byte, 1, 0) <= 0;
}

}  // namespace

TEST_CASE("a rank reads what the keeper of another host holds, and no more than that") {
  const Keeper keeper;
  fill(keeper.file(0, 1), "the first rank");
  fill(keeper.file(1, 0), "the second rank");
  std::string large(5 << 20, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 + i / 1000);
  fill(keeper.file(1, 1), large);
  HeldClient client(keeper.place(), "token");
  CHECK(read(client, 0, 1, 4, 5) == "first");
  CHECK(read(client, 1, 0, 11, 100) == "rank");
  CHECK(read(client, 1, 1, 0, large.size()) == large);
  CHECK(read(client, 1, 1, 12345, 1 << 20) == large.substr(12345, 1 << 20));
  client.disconnect();
  CHECK(read(client, 0, 0, 0, 10).empty());
  CHECK(read(client, 0, 1, 14, 10).empty());
  CHECK(read(client, 0, 1, int64_t{1} << 59, 10).empty());
  struct Wrong {
    int rank, slot;
    int64_t offset;
  };
  for (const auto& [rank, slot, offset] :
       {Wrong{-1, 0, 0}, Wrong{kRanks, 0, 0}, Wrong{0, 4, 0}, Wrong{0, -1, 0}, Wrong{0, 0, -1},
        Wrong{INT32_MAX, INT32_MAX, INT64_MAX}}) {
    CAPTURE(rank, slot, offset);
    HeldClient other(keeper.place(), "token");
    CHECK_THROWS_WITH(read(other, rank, slot, offset, 10),
                      Contains("it has no memory of such a rank (" + std::to_string(rank)));
  }
}

TEST_CASE("a rank writes copies into another host's memory, and into nothing else") {
  const Keeper keeper;
  fill(keeper.file(1, 0), "the state");
  std::string large(5 << 20, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 + i / 1000);
  HeldClient client(keeper.place(), "token");
  client.reserve(1, 3, static_cast<int64_t>(large.size()));
  const auto bytes = std::as_bytes(std::span(large));
  client.write(1, 3, bytes.subspan(4096), 4096);
  client.write(1, 3, bytes.first(4096), 0);
  CHECK(read(client, 1, 3, 0, large.size()) == large);
  CHECK(read(client, 1, 2, 0, 10).empty());
  CHECK_THROWS_WITH(client.reserve(1, 3, int64_t{1} << 50),
                    Contains("host worker-1 does not give 1125899906842624 bytes for a copy"));
  CHECK(read(client, 1, 3, 4090, 10) == large.substr(4090, 10));
  // In several pieces, and again where memory is taken already.
  for (int again = 0; again < 2; ++again) client.reserve(0, 2, (600 << 20) + 5);
  struct stat status {};
  REQUIRE(::fstat(keeper.copy(0, 0), &status) == 0);
  CHECK(status.st_size == (600 << 20) + 5);
  CHECK(512 * int64_t{status.st_blocks} >= status.st_size);
  client.reserve(0, 2, 0);
  REQUIRE(::fstat(keeper.copy(0, 0), &status) == 0);
  CHECK((status.st_size == 0 && status.st_blocks == 0));
  for (const int slot : {0, 1, 4, -1}) {
    CAPTURE(slot);
    HeldClient other(keeper.place(), "token");
    CHECK_THROWS_WITH(other.write(1, slot, bytes.first(100), 0), Contains("it has no memory of such a rank"));
  }
  CHECK(read(client, 1, 0, 0, 100) == "the state");

  // A rank that is killed while it writes.
  UniqueFd part = greeted(keeper.port());
  send_request(part.get(), {.verb = HeldVerb::write, .rank = 1, .slot = 3, .bytes = 1 << 20});
  REQUIRE(::send(part.get(), "new", 3, MSG_NOSIGNAL) == 3);
  part.reset();
  CHECK(read(client, 1, 3, 4096, 100) == large.substr(4096, 100));
}

TEST_CASE("signals that a rank gets while it waits for a keeper are no deadline") {
  const Keeper keeper;
  const std::string large(64 << 20, 'x');
  fill(keeper.file(0, 0), large);
  struct sigaction ours {
  }, before{};
  ours.sa_handler = [](int) {};
  REQUIRE(::sigaction(SIGUSR1, &ours, &before) == 0);
  HeldClient client(keeper.place(), "token");
  const pthread_t reader = ::pthread_self();
  std::jthread sender([&](const std::stop_token& end) {
    while (!end.stop_requested()) {
      ::pthread_kill(reader, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  for (int round = 0; round < 3; ++round) CHECK(read(client, 0, 0, 0, large.size()) == large);
  sender.request_stop();
  sender.join();
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST_CASE("only those read that know the token of the attempt") {
  Keeper keeper;
  fill(keeper.file(0, 0), "state");
  HeldClient earlier(keeper.place(), "token", kShort);
  CHECK(read(earlier, 0, 0, 0, 5) == "state");
  HeldClient stranger(keeper.place(), "another", kShort);
  CHECK_THROWS_WITH(
      read(stranger, 0, 0, 0, 5),
      Contains("the memory that host worker-1 holds (--hold_every) cannot be reached at 127.0.0.1:") &&
          Contains("does not answer as this job's keeper"));
  keeper.set_token("next");
  CHECK_THROWS_AS(read(earlier, 0, 0, 0, 5), CommError);
  HeldClient later(keeper.place(), "next");
  CHECK(read(later, 0, 0, 0, 5) == "state");

  // A rank may begin to connect before the keeper has learnt the token.
  std::jthread soon([&] {
    std::this_thread::sleep_for(milliseconds(300));
    keeper.set_token("third");
  });
  HeldClient early(keeper.place(), "third");
  CHECK(read(early, 0, 0, 0, 5) == "state");
}

TEST_CASE("what a client does wrong concerns no other one") {
  const Keeper keeper;
  fill(keeper.file(0, 0), std::string(64 << 20, 's'));
  HeldClient client(keeper.place(), "token", kShort);
  CHECK(read(client, 0, 0, 0, 3) == "sss");

  std::vector<UniqueFd> silent;
  for (int number = 0; number < 100; ++number) silent.push_back(connection(keeper.port()));
  const UniqueFd noise = connection(keeper.port());
  REQUIRE(::send(noise.get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
  CHECK(is_closed_soon(noise.get()));
  UniqueFd part = greeted(keeper.port());
  send_request(part.get(), {.bytes = 5}, 7);
  const UniqueFd stalls = greeted(keeper.port());
  send_request(stalls.get(), {.bytes = 64 << 20});
  UniqueFd leaves = greeted(keeper.port());
  send_request(leaves.get(), {.bytes = 64 << 20});
  leaves.reset();

  CHECK(read(client, 0, 0, 0, 3) == "sss");
  part.reset();
  HeldClient other(keeper.place(), "token");
  CHECK(read(other, 0, 0, 0, 3) == "sss");
  // The file becomes shorter while it is sent.
  char first = 0;
  REQUIRE(::recv(stalls.get(), &first, 1, 0) == 1);
  REQUIRE(::ftruncate(keeper.file(0, 0), 100) == 0);
  std::string rest(1 << 20, '\0');
  ssize_t size = 0;
  do {
    pollfd entry = {stalls.get(), POLLIN, 0};
    REQUIRE(::poll(&entry, 1, 2000) == 1);
    size = ::recv(stalls.get(), rest.data(), rest.size(), 0);
  } while (size > 0);
  CHECK(read(other, 0, 0, 99, 3) == "s");
}

TEST_CASE("a keeper that is gone or stopped is an error with a deadline, once") {
  auto keeper = std::make_unique<Keeper>();
  HeldClient client(keeper->place(), "token", kShort), late(keeper->place(), "token", kShort);
  CHECK(read(client, 0, 0, 0, 3).empty());
  keeper->stop_serving();
  const auto begin = Clock::now();
  CHECK_THROWS_WITH(read(client, 0, 0, 0, 3), Contains("nothing has come from it for 400 ms"));
  CHECK_THROWS_AS(read(late, 0, 0, 0, 3), CommError);
  const auto middle = Clock::now();
  CHECK(middle - begin < milliseconds(3000));
  for (int again = 0; again < 20; ++again) CHECK_THROWS_AS(read(client, 0, 0, 0, 3), CommError);
  CHECK(Clock::now() - middle < milliseconds(300));
  const HeldKeeper place = keeper->place();
  keeper.reset();
  HeldClient refused(place, "token");
  CHECK_THROWS_WITH(read(refused, 0, 0, 0, 3), Contains("Connection refused"));
  CHECK(Clock::now() - middle < milliseconds(2000));
}

TEST_CASE("the text of held memory names other hosts, and memory of another tag is none") {
  const HeldMemory memory(2, "tag"), other(2, "other");
  const std::string keeper =
      keeper_place({.host = "worker-1", .address = "10.0.0.2", .port = 4711, .first_rank = 2, .ranks = 3});
  ::setenv(kHeldMemoryVariable, ("5 " + memory.place() + " " + keeper).c_str(), 1);
  const OpenHeldMemory open = open_held_memory();
  CHECK(open.every == 5);
  REQUIRE(open.ranks.size() == 5);
  CHECK(open.ranks[1][1].is_open());
  CHECK_FALSE(open.ranks[2][0].is_open());
  REQUIRE(open.keepers.size() == 1);
  CHECK(open.keepers[0].address == "10.0.0.2");
  CHECK(open.keepers[0].first_rank == 2);
  CHECK(open.keepers[0].ranks == 3);
  std::string changed = memory.place();
  changed.replace(changed.find("tag"), 3, "ta");
  for (const std::string& bad : std::vector<std::string>{
           "5 " + changed, "5 memory tag 3 " + memory.place().substr(13), "5 keeper worker-1 10.0.0.2 x 3",
           "5 keeper worker-1 10.0.0.2 4711 -3", "5 keeper worker-1 10.0.0.2 4711 2000000000"}) {
    CAPTURE(bad);
    ::setenv(kHeldMemoryVariable, bad.c_str(), 1);
    CHECK(open_held_memory().ranks.empty());
  }
  ::unsetenv(kHeldMemoryVariable);
  CHECK(is_held_memory(memory.place()));
  CHECK_FALSE(is_held_memory(changed));
  CHECK_FALSE(is_held_memory(""));
  CHECK_FALSE(is_held_memory("memory tag 1 /proc/1/fd/0 /proc/1/fd/1"));
}

}  // namespace zerorun::testing
