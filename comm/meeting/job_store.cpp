#include "comm/meeting/job_store.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

namespace zerorun {
namespace {

std::chrono::milliseconds earlier(const Deadline& deadline, std::chrono::milliseconds limit) {
  return limit == c10d::Store::kNoTimeout ? deadline.remaining() : std::min(deadline.remaining(), limit);
}

// Adapts a JobStore to c10d::Store, the interface through which Gloo connects ranks.
class DeadlineStore : public c10d::Store {
 public:
  DeadlineStore(StorePointer store, const Deadline& deadline)
      : c10d::Store(deadline.timeout()), store_(std::move(store)), deadline_(deadline) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<DeadlineStore>(store_, deadline_);
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    store_->set(key, {value.begin(), value.end()}, deadline_);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const std::string value = await(key, deadline_);
    return {value.begin(), value.end()};
  }
  bool check(const std::vector<std::string>& keys) override {
    return std::ranges::all_of(keys,
                               [&](const auto& key) { return store_->find(key, deadline_).has_value(); });
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, kNoTimeout); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& limit) override {
    const Deadline deadline(earlier(deadline_, limit));
    for (const std::string& key : keys) await(key, deadline);
  }

  int64_t add(const std::string&, int64_t) override { not_supported("add"); }
  bool deleteKey(const std::string&) override { not_supported("deleteKey"); }
  int64_t getNumKeys() override { not_supported("getNumKeys"); }

 private:
  std::string await(const std::string& key, const Deadline& deadline) const {
    if (auto value = store_->await(key, deadline)) return *value;
    throw CommError("not all ranks take part");
  }
  [[noreturn]] static void not_supported(const char* name) {
    throw InternalError(std::string("the ranks' store does not support c10d's ") + name);
  }

  StorePointer store_;
  Deadline deadline_;
};

}  // namespace

// The connection to the store, used by one call at a time. A call that hangs keeps the connection locked, so
// later calls time out while they wait for the lock instead of each leaving a hanging thread.
struct JobStore::Line {
  Connection connection;
  std::string keeper;
  std::mutex mutex;
  std::condition_variable freed;
  bool busy = false;

  bool take(const Deadline& deadline) {
    std::unique_lock lock(mutex);
    if (!freed.wait_until(lock, deadline.end(), [this] { return !busy; })) return false;
    return busy = true;
  }
  void free() {
    const std::lock_guard lock(mutex);
    busy = false;
    freed.notify_one();
  }
};

JobStore::JobStore(Connection connection, std::string keeper, const Seal& seal, std::string prefix)
    : JobStore(std::make_shared<Line>(), seal, std::move(prefix)) {
  line_->connection = std::move(connection);
  line_->keeper = std::move(keeper);
}

JobStore::JobStore(std::shared_ptr<Line> line, const Seal& seal, std::string prefix)
    : line_(std::move(line)), seal_(seal), prefix_(std::move(prefix)) {}

StorePointer JobStore::part(const std::string& name) const {
  return StorePointer(new JobStore(line_, seal_, prefix_ + name + "/"));
}

template <typename Talk>
std::invoke_result_t<Talk, c10d::Store&> JobStore::talk(Talk talk, const Deadline& deadline) const {
  if (!line_->take(deadline)) throw StoreError(words_of_silence(line_->keeper), true);
  std::shared_ptr<void> turn(nullptr, [line = line_](void*) { line->free(); });
  auto result = run_detached([line = line_, turn = std::move(turn), talk = std::move(talk)]() mutable {
    const std::shared_ptr<void> ours = std::move(turn);  // frees the line before the future becomes ready
    return talk(*line->connection);
  });
  const Deadline::Clock::time_point end = std::max(deadline.end(), Deadline::Clock::now());
  if (result.wait_until(end + kTimeToAnswer) != std::future_status::ready)
    throw StoreError(words_of_silence(line_->keeper), true);
  auto answer = result.get();
  if (answer.value) return std::move(*answer.value);
  throw StoreError(
      line_->keeper + ", which keeps the store of all ranks, has probably ended (" + answer.failure + ")",
      false);
}

std::string JobStore::opened(const std::string& key, const std::vector<uint8_t>& stored) const {
  if (auto value = seal_.open(key, stored)) return *value;
  throw CommError("the value in the ranks' store under '" + key +
                  "' was written by a process that does not know this job's token (ZERORUN_JOB)");
}

void JobStore::set(const std::string& key, const std::string& value, const Deadline& deadline) const {
  const std::string whole = prefix_ + key;
  talk(
      [whole, stored = seal_.close(whole, value)](c10d::Store& store) {
        store.set(whole, stored);
        return true;
      },
      deadline);
}

std::optional<std::string> JobStore::await(const std::string& key, const Deadline& deadline) const {
  using Stored = std::optional<std::vector<uint8_t>>;
  const std::string whole = prefix_ + key;
  const Stored stored = talk(
      [whole, deadline](c10d::Store& store) -> Stored {
        try {
          store.wait({whole}, deadline.remaining());
        } catch (const c10::DistStoreError&) {
          return std::nullopt;
        }
        return store.get(whole);
      },
      deadline);
  if (!stored) return std::nullopt;
  return opened(whole, *stored);
}

std::optional<std::vector<std::string>> JobStore::await_all(const std::vector<std::string>& keys,
                                                            const Deadline& deadline) const {
  using Stored = std::optional<std::vector<std::vector<uint8_t>>>;
  std::vector<std::string> whole;
  for (const std::string& key : keys) whole.push_back(prefix_ + key);
  const Stored stored = talk(
      [whole, deadline](c10d::Store& store) -> Stored {
        try {
          store.wait(whole, deadline.remaining());
        } catch (const c10::DistStoreError&) {
          return std::nullopt;
        }
        return store.multiGet(whole);
      },
      deadline);
  if (!stored) return std::nullopt;
  std::vector<std::string> values;
  for (size_t i = 0; i < whole.size(); ++i) values.push_back(opened(whole[i], (*stored)[i]));
  return values;
}

std::optional<std::string> JobStore::find(const std::string& key, const Deadline& deadline) const {
  using Stored = std::optional<std::vector<uint8_t>>;
  const std::string whole = prefix_ + key;
  const Stored stored = talk(
      [whole](c10d::Store& store) -> Stored {
        if (!store.check({whole})) return std::nullopt;
        return store.get(whole);
      },
      deadline);
  if (!stored) return std::nullopt;
  return opened(whole, *stored);
}

std::string JobStore::claim(const std::string& key, const std::string& value,
                            const Deadline& deadline) const {
  const std::string whole = prefix_ + key;
  return opened(
      whole, talk([whole, stored = seal_.close(whole, value)](
                      c10d::Store& store) { return store.compareSet(whole, std::vector<uint8_t>(), stored); },
                  deadline));
}

void JobStore::remove(const std::string& key, const Deadline& deadline) const {
  talk([whole = prefix_ + key](c10d::Store& store) { return store.deleteKey(whole); }, deadline);
}

Connection JobStore::for_c10d(const Deadline& deadline) const {
  return c10::make_intrusive<DeadlineStore>(std::make_shared<const JobStore>(*this), deadline);
}

std::string words_of_silence(const std::string& keeper) {
  return keeper + ", which keeps the store of all ranks, does not answer: it is stopped or cannot be reached";
}

std::string first_line(const char* message) {
  const std::string text = message;
  return text.substr(0, text.find('\n'));
}

}  // namespace zerorun
