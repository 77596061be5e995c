// Counts the messages that each rank sends when it connects and in each collective, on 4 to 512 rank-threads.
// docs/performance.md lists what grows with the number of ranks.
#include <ATen/record_function.h>
#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "comm/connect/two_levels.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/meeting/environment.h"
#include "comm/meeting/exchange.h"
#include "comm/meeting/store.h"
#include "comm/shared_memory/shared_memory_communicator.h"
#include "tests/support/settings.h"

namespace zerorun {
namespace {

using namespace std::chrono_literals;

struct Traffic {
  int64_t calls = 0;   // messages to the store
  int64_t values = 0;  // values read
  int64_t bytes = 0;   // total size of the values that were written or read
};

// One rank's connection to a store that all rank-threads share. Counts the rank's traffic.
class CountingStore : public c10d::Store {
 public:
  explicit CountingStore(c10::intrusive_ptr<c10d::Store> shared) : shared_(std::move(shared)) {}

  const Traffic& traffic() const { return traffic_; }

  c10::intrusive_ptr<c10d::Store> clone() override { throw std::runtime_error("not cloned"); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    count(0, value.size());
    shared_->set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const auto value = shared_->get(key);
    count(1, value.size());
    return value;
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    ++traffic_.calls;
    std::vector<std::vector<uint8_t>> values;
    for (const std::string& key : keys) {
      values.push_back(shared_->get(key));
      ++traffic_.values;
      traffic_.bytes += static_cast<int64_t>(values.back().size());
    }
    return values;
  }
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    const auto value = shared_->compareSet(key, expected, desired);
    count(1, value.size());
    return value;
  }
  int64_t add(const std::string& key, int64_t value) override {
    count(1, 8);
    return shared_->add(key, value);
  }
  bool deleteKey(const std::string& key) override {
    count(0, 0);
    return shared_->deleteKey(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    count(0, 0);
    return shared_->check(keys);
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, 60s); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    count(0, 0);
    shared_->wait(keys, timeout);
  }
  int64_t getNumKeys() override { return shared_->getNumKeys(); }

 private:
  void count(int values, size_t bytes) {
    ++traffic_.calls;
    traffic_.values += values;
    traffic_.bytes += static_cast<int64_t>(bytes);
  }

  c10::intrusive_ptr<c10d::Store> shared_;
  Traffic traffic_;
};

// The traffic of rank 0. `others`: the maximum over the other ranks, for each member of Traffic separately.
struct Counted {
  Traffic first;
  Traffic others;
};

// Throws if something is wrong: Catch's macros must not be used in several threads at once.
using Body = std::function<void(const Environment&, const Connection&)>;

// Runs `body` for each rank in a thread of its own.
Counted count_over_ranks(int world_size, const Body& body) {
  const auto shared = c10::make_intrusive<c10d::HashStore>();
  std::vector<c10::intrusive_ptr<CountingStore>> stores;
  std::vector<std::string> failures(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    stores.push_back(c10::make_intrusive<CountingStore>(shared));
    threads.emplace_back([&, rank, store = stores.back()] {
      Environment environment;
      environment.rank = rank;
      environment.world_size = world_size;
      environment.one_host = false;
      environment.timeout = 60s;
      try {
        body(environment, store);
      } catch (const std::exception& error) {
        failures[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) CHECK(failure == "");
  Counted counted{stores[0]->traffic(), {}};
  for (int rank = 1; rank < world_size; ++rank) {
    const Traffic& traffic = stores[rank]->traffic();
    counted.others.calls = std::max(counted.others.calls, traffic.calls);
    counted.others.values = std::max(counted.others.values, traffic.values);
    counted.others.bytes = std::max(counted.others.bytes, traffic.bytes);
  }
  return counted;
}

void print(const char* what, int world_size, const Counted& counted) {
  std::printf(
      "%-34s %4d ranks: rank 0 %4ld calls %4ld values %8ld bytes; others %4ld calls %4ld values %8ld bytes\n",
      what, world_size, counted.first.calls, counted.first.values, counted.first.bytes, counted.others.calls,
      counted.others.values, counted.others.bytes);
}

Joined join(const Environment& environment, const Connection& connection, const Deadline& deadline) {
  claim_rank(connection, environment, deadline);
  return join_over(connection, environment, 0, "cpu", deadline);
}

// The number of messages that this rank-thread has sent over Gloo. c10d reports each message to the profiler.
thread_local int64_t sent_messages = 0;

std::unique_ptr<at::ObserverContext> note_message(const at::RecordFunction& function) {
  if (std::string(function.name()) == "gloo:send") ++sent_messages;
  return nullptr;
}

// Returns the number of messages that the calling rank sends in each collective, by the collective's name.
std::map<std::string, int64_t> count_messages(Communicator& communicator) {
  at::Tensor slice = at::ones({16});
  at::Tensor whole = at::ones({16 * communicator.world_size()});
  const std::pair<const char*, std::function<std::unique_ptr<Work>()>> collectives[] = {
      {"reduce-scatter", [&] { return communicator.reduce_scatter(slice, whole, "a"); }},
      {"all-gather", [&] { return communicator.all_gather(whole, slice, "b"); }},
      {"all-reduce", [&] { return communicator.all_reduce(slice, "c"); }},
      {"broadcast", [&] { return communicator.broadcast(slice, 0, "d"); }},
      {"barrier", [&] { return communicator.barrier("e"); }}};
  std::map<std::string, int64_t> sent;
  for (const auto& [name, start] : collectives) {
    const int64_t before = sent_messages;
    start()->wait();
    sent[name] = sent_messages - before;
  }
  return sent;
}

}  // namespace

TEST_CASE("scale: for joining and for an exchange every rank sends as few messages on 512 ranks as on 8") {
  std::map<int, Counted> joins;
  std::map<int, Counted> routes;
  for (int ranks = 8; ranks <= 512; ranks *= 2) {
    const Deadline deadline(60s);
    joins[ranks] = count_over_ranks(ranks, [&](const Environment& environment, const Connection& connection) {
      const Joined joined = join(environment, connection, deadline);
      if (joined.words.size() != static_cast<size_t>(environment.world_size))
        throw std::runtime_error("another number of words");
    });
    routes[ranks] =
        count_over_ranks(ranks, [&](const Environment& environment, const Connection& connection) {
          const JobStore store(connection, "rank 0", Seal("job"), "");
          exchange_words(store, "route", environment.rank, environment.world_size, "192.0.2.200 192.0.2.1",
                         deadline);
        });
    print("joining", ranks, joins[ranks]);
    print("an exchange of addresses", ranks, routes[ranks]);
  }
  for (const auto& [ranks, counted] : joins) {
    CAPTURE(ranks);
    CHECK(counted.others.calls == joins[8].others.calls);
    CHECK(counted.others.values == joins[8].others.values);
    CHECK(counted.first.calls == joins[8].first.calls);
    CHECK(routes[ranks].others.calls == 3);
    CHECK(routes[ranks].others.values == 1);
    CHECK(routes[ranks].first.calls == 4);
    CHECK(routes[ranks].first.values == ranks);
    // Every rank reads the words of all ranks. A word has at most 40 bytes here.
    CHECK(routes[ranks].others.bytes < 40 * (ranks + 2));
  }
}

// ThreadSanitizer leaves too few addresses for the shared memory of 16 ranks in one process.
#if !defined(__SANITIZE_THREAD__)
TEST_CASE("scale: to connect over shared memory, a rank sends as few messages on 16 ranks as on 4") {
  std::map<int, Counted> all;
  for (int ranks = 4; ranks <= 16; ranks *= 2) {
    const Deadline deadline(60s);
    all[ranks] = count_over_ranks(ranks, [&](const Environment& environment, const Connection& connection) {
      std::string obstacle;
      const Joined joined = join(environment, connection, deadline);
      const auto communicator =
          make_shared_memory_communicator(RanksOfHost::all(environment.rank, environment.world_size),
                                          joined.store, joined.job, environment.timeout, deadline, obstacle);
      if (!communicator) throw std::runtime_error(obstacle);
      communicator->barrier("end")->wait();
    });
    print("joining, and shared memory", ranks, all[ranks]);
  }
  for (const auto& [ranks, counted] : all) {
    CAPTURE(ranks);
    CHECK(counted.others.calls == all[4].others.calls);
    CHECK(counted.others.values == all[4].others.values);
    CHECK(counted.first.calls == all[4].first.calls);
  }
}

TEST_CASE(
    "scale: on two levels a rank's calls of the store and messages grow with the hosts, not with the ranks") {
  std::vector<std::pair<int, int>> shapes = {{2, 4}, {3, 4}, {4, 4}};  // hosts, and ranks on each
  if (testing::tries_all()) shapes.insert(shapes.end(), {{4, 16}, {16, 4}, {64, 4}});
  const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(note_message));
  int64_t with_two_hosts = 0;
  for (const auto& [hosts, per_host] : shapes) {
    CAPTURE(hosts, per_host);
    const Deadline deadline(60s);
    std::vector<std::map<std::string, int64_t>> sent(static_cast<size_t>(hosts * per_host));
    const int on_host = per_host;
    const Counted counted =
        count_over_ranks(hosts * per_host, [&](const Environment& given, const Connection& connection) {
          Environment environment = given;
          environment.local_rank = given.rank % on_host;
          environment.local_world_size = on_host;
          std::string obstacle;
          const Joined joined = join(environment, connection, deadline);
          const auto communicator = connect_in_two_levels(environment, joined, deadline, obstacle);
          if (!communicator) throw std::runtime_error(obstacle);
          sent[environment.rank] = count_messages(*communicator);
        });
    print("joining, and two levels", hosts * per_host, counted);
    if (hosts == 2) with_two_hosts = counted.others.calls;
    // Gloo: 4 calls for each other host. A wait that takes seconds, as with hundreds of threads, is repeated.
    const int64_t expected = with_two_hosts + 4 * (hosts - 2);
    CHECK(counted.others.calls >= expected);
    CHECK(counted.others.calls <= expected + (hosts * per_host > 64 ? 8 : 0));
    // Only an all-gather sends in the calling thread, where messages are counted.
    CHECK(sent[0]["all-gather"] == hosts - 1);
  }
  at::removeCallback(handle);
}
#endif

TEST_CASE("scale: Gloo's messages grow with the number of ranks, at the start and in each collective") {
  const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(note_message));
  std::map<int, Counted> connects;
  for (int ranks = 4; ranks <= 16; ranks *= 2) {
    CAPTURE(ranks);
    std::vector<std::map<std::string, int64_t>> sent(ranks);
    const Deadline deadline(60s);
    connects[ranks] =
        count_over_ranks(ranks, [&](const Environment& environment, const Connection& connection) {
          const Joined joined = join(environment, connection, deadline);
          const auto communicator = make_gloo_communicator(environment, joined.store, deadline);
          sent[environment.rank] = count_messages(*communicator);
        });
    print("joining, and Gloo", ranks, connects[ranks]);
    std::printf("messages of rank 0 over Gloo      %5d ranks:", ranks);
    for (const auto& [name, messages] : sent[0]) std::printf(" %s %ld;", name.c_str(), messages);
    std::printf("\n");
    for (int rank = 0; rank < ranks; ++rank) {
      CAPTURE(rank);
      for (const char* name : {"reduce-scatter", "all-gather", "all-reduce", "barrier"}) {
        CHECK(sent[rank][name] == ranks - 1);
      }
      CHECK(sent[rank]["broadcast"] == (rank == 0 ? ranks - 1 : 0));
    }
  }
  at::removeCallback(handle);
  // The number of values that a rank reads grows linearly: it reads two values of each other rank.
  const auto growth = [&](int ranks) {
    return connects[2 * ranks].others.values - connects[ranks].others.values;
  };
  CHECK(growth(4) == 2 * 4);
  CHECK(growth(8) == 2 * 8);
}

}  // namespace zerorun
