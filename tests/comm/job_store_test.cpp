// Tests that every call to a job's store has a deadline, and that values without the job's seal are refused.
#include "comm/meeting/job_store.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <mutex>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace zerorun {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;

// A store whose server hangs: no call returns before go_on().
class SilentStore : public c10d::HashStore {
 public:
  void set(const std::string&, const std::vector<uint8_t>&) override { stand_still(); }
  std::vector<uint8_t> get(const std::string&) override { return stand_still(), std::vector<uint8_t>(); }
  std::vector<uint8_t> compareSet(const std::string&, const std::vector<uint8_t>&,
                                  const std::vector<uint8_t>&) override {
    return stand_still(), std::vector<uint8_t>();
  }
  bool check(const std::vector<std::string>&) override { return stand_still(), false; }
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override { stand_still(); }

  void go_on() {
    const std::lock_guard lock(mutex_);
    going_on_ = true;
    changed_.notify_all();
  }
  int calls() const { return calls_; }

 private:
  void stand_still() {
    std::unique_lock lock(mutex_);
    ++calls_;
    changed_.wait(lock, [this] { return going_on_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool going_on_ = false;
  std::atomic<int> calls_ = 0;
};

StorePointer store_over(const Connection& connection, const std::string& secret = "secret") {
  return std::make_shared<const JobStore>(connection, "rank 0", Seal(secret), "job/");
}

}  // namespace

TEST_CASE("job store: if the store hangs, every call ends at its deadline, and only one thread is blocked") {
  const auto silent = c10::make_intrusive<SilentStore>();
  const StorePointer store = store_over(silent);
  const std::function<void()> calls[] = {[&] { store->set("key", "value", Deadline(50ms)); },
                                         [&] { store->await("key", Deadline(50ms)); },
                                         [&] { store->find("key", Deadline(50ms)); },
                                         [&] { store->claim("key", "value", Deadline(50ms)); },
                                         [&] { store->part("a")->find("key", Deadline(50ms)); },
                                         [&] { store->for_c10d(Deadline(50ms))->get("key"); }};
  for (const auto& call : calls) {
    try {
      call();
      FAIL("it returned");
    } catch (const StoreError& error) {
      CHECK(error.is_silent());
      CHECK(error.what() == words_of_silence("rank 0"));
    }
  }
  CHECK(silent->calls() == 1);
  silent->go_on();
}

TEST_CASE("job store: a store that answers again can be used again") {
  const auto silent = c10::make_intrusive<SilentStore>();
  const StorePointer store = store_over(silent);
  CHECK_THROWS_AS(store->set("key", "value", Deadline(1ms)), StoreError);
  silent->go_on();
  CHECK_NOTHROW(store->find("key", Deadline(60s)));
}

TEST_CASE("job store: values can be read again, parts have keys of their own, the first claim wins") {
  const auto raw = c10::make_intrusive<c10d::HashStore>();
  const StorePointer store = store_over(raw);
  const Deadline deadline(60s);
  CHECK_FALSE(store->find("key", deadline));
  CHECK_FALSE(store->await("key", Deadline(20ms)));
  store->set("key", "value", deadline);
  CHECK(store->find("key", deadline) == "value");
  CHECK(store->await("key", deadline) == "value");
  CHECK_FALSE(store->part("a")->find("key", deadline));
  store->part("a")->set("key", "another", deadline);
  CHECK(store->find("key", deadline) == "value");
  CHECK(store->claim("rank 1", "first", deadline) == "first");
  CHECK(store->claim("rank 1", "second", deadline) == "first");

  const Connection view = store->for_c10d(deadline);
  const std::vector<uint8_t> bytes = {0, 1, 255};
  view->set("bytes", bytes);
  CHECK(view->get("bytes") == bytes);
  CHECK(view->check({"bytes", "key"}));
  CHECK_FALSE(view->check({"bytes", "none"}));
  CHECK_THROWS_AS(view->wait({"none"}, 20ms), CommError);
}

TEST_CASE("job store: a value without the job's seal is an error that says so") {
  const auto raw = c10::make_intrusive<c10d::HashStore>();
  const Deadline deadline(60s);
  const StorePointer ours = store_over(raw);
  const auto is_told = [](const auto& call) {
    CHECK_THROWS_WITH(call(), Contains("'job/key'") && Contains("does not know this job's token"));
  };
  raw->set("job/key", std::vector<uint8_t>{'c', 'p', 'u'});
  is_told([&] { ours->find("key", deadline); });
  is_told([&] { ours->await("key", deadline); });
  is_told([&] { ours->claim("key", "value", deadline); });
  store_over(raw, "another secret")->set("key", "value", deadline);
  is_told([&] { ours->find("key", deadline); });
  // A value that this job sealed under another key is not valid here.
  ours->set("other key", "value", deadline);
  raw->set("job/key", raw->get("job/other key"));
  is_told([&] { ours->find("key", deadline); });
}

TEST_CASE("job store: the error of a store that has ended differs from that of a store that hangs") {
  class Gone : public c10d::HashStore {
    bool check(const std::vector<std::string>&) override { throw std::runtime_error("broken pipe\nframes"); }
  };
  try {
    store_over(c10::make_intrusive<Gone>())->find("key", Deadline(60s));
    FAIL("it returned");
  } catch (const StoreError& error) {
    CHECK_FALSE(error.is_silent());
    CHECK_THAT(error.what(), Contains("rank 0") && Contains("has probably ended (broken pipe)"));
  }
}

}  // namespace zerorun
