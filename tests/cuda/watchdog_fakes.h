// Fakes for tests of the watchdog: collectives that start and end on command, a store whose server has ended,
// and a store whose server hangs.
#pragma once

#include <ATen/ops/zeros.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "cuda/nccl_watchdog.h"

namespace zerorun::testing {

class FakeProbe : public CollectiveProbe {
 public:
  void enter_thread() override { ++entered; }
  void prepare(size_t count) override { prepared = count; }
  bool started(size_t slot) override { return ++asked, has_started.contains(slot); }
  bool finished(size_t slot) override { return ++asked, has_finished.contains(slot); }
  std::string failure() override { return ++asked, reported; }
  void abort() override { ++aborts; }

  std::set<size_t> has_started;
  std::set<size_t> has_finished;
  std::string reported;
  size_t prepared = 0;
  std::atomic<int> aborts = 0;
  std::atomic<int> asked = 0;
  std::atomic<int> entered = 0;
};

// A driver that hangs: no question is answered before the abort.
class HangingProbe : public CollectiveProbe {
 public:
  void prepare(size_t) override {}
  bool started(size_t) override { return wait(), false; }
  bool finished(size_t) override { return wait(), false; }
  std::string failure() override { return ""; }
  void abort() override { ++aborts; }

  void await_question() const {
    while (!asked) std::this_thread::yield();
  }

  std::atomic<int> aborts = 0;

 private:
  void wait() {
    asked = true;
    while (aborts == 0) std::this_thread::yield();
  }

  std::atomic<bool> asked = false;
};

class ThrowingProbe : public CollectiveProbe {
 public:
  void prepare(size_t) override {}
  bool started(size_t) override { throw std::runtime_error("no memory"); }
  bool finished(size_t) override { return false; }
  std::string failure() override { return ""; }
  void abort() override {
    ++aborts;
    throw std::runtime_error("no threads");
  }

  std::atomic<int> aborts = 0;
};

class StoreThatHasGone : public c10d::HashStore {
 public:
  void set(const std::string&, const std::vector<uint8_t>&) override { throw std::runtime_error("gone"); }
  bool check(const std::vector<std::string>&) override { throw std::runtime_error("gone"); }
};

// A store whose server hangs: no call returns before go_on().
class StoreThatStandsStill : public c10d::HashStore {
 public:
  void set(const std::string&, const std::vector<uint8_t>&) override { stand_still(); }
  std::vector<uint8_t> get(const std::string&) override { return stand_still(), std::vector<uint8_t>(); }
  bool check(const std::vector<std::string>&) override { return stand_still(), false; }

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

inline std::unique_ptr<StoreCourier> courier_to(std::shared_ptr<const WaitBoard> wait_board, int world_size) {
  if (!wait_board) return nullptr;
  return std::make_unique<StoreCourier>(std::move(wait_board), world_size);
}

inline CollectiveCall call_of(const std::string& label, Collective kind = Collective::all_gather,
                              const std::string& reason = {}) {
  const at::Tensor tensor = at::zeros({8});
  return {kind, tensor, tensor, 0, label, reason};
}

/// Wraps a connection as the store that the ranks of a job use.
inline StorePointer store_over(Connection connection) {
  return std::make_shared<const JobStore>(std::move(connection), "rank 0", Seal("secret"), "");
}

inline StorePointer new_store() {
  return store_over(c10::make_intrusive<c10d::HashStore>());
}

}  // namespace zerorun::testing
