// Transfers without io_uring, by threads that each execute one transfer at a time.
#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "offload/transfers.h"

namespace zerorun {
namespace {

class TransferThreads : public Transfers {
 public:
  TransferThreads(checkpoint::FileSystem& files, int count) : files_(&files) {
    threads_.reserve(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      try {
        threads_.emplace_back([this] { work(); });
      } catch (const std::system_error&) {  // the system allows no more threads
        if (threads_.empty()) throw;
        return;
      }
    }
  }

  ~TransferThreads() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void start(const Transfer& transfer, int tag) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back({transfer, tag});
    }
    changed_.notify_one();
  }

  std::optional<TransferDone> next(std::chrono::milliseconds patience) override {
    std::unique_lock lock(mutex_);
    if (!one_done_.wait_for(lock, patience, [this] { return !done_.empty(); })) return std::nullopt;
    const TransferDone done = done_.front();
    done_.pop_front();
    return done;
  }

  const char* name() const override { return "threads"; }

 private:
  struct Waiting {
    Transfer transfer;
    int tag;
  };

  void work() {
    ::pthread_setname_np(::pthread_self(), "offload");
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const auto [transfer, tag] = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const int64_t result = transfer.writes ? files_->write(transfer.file, transfer.bytes, transfer.offset)
                                             : files_->read(transfer.file, transfer.bytes, transfer.offset);
      lock.lock();
      done_.push_back({tag, result});
      one_done_.notify_one();
    }
  }

  checkpoint::FileSystem* files_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable one_done_;
  std::deque<Waiting> waiting_;
  std::deque<TransferDone> done_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Transfers> open_transfer_threads(checkpoint::FileSystem& files, int threads) {
  return std::make_unique<TransferThreads>(files, threads);
}

}  // namespace zerorun
