#include "comm/shared_memory/shared_memory_communicator.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <utility>

#include "comm/meeting/store_notices.h"
#include "comm/shared_memory/shared_transfers.h"

namespace zerorun {
namespace {

// The size in bytes from which allocate() places a tensor in the arena. A smaller tensor is not worth a page
// of its own there, and is copied when it is sent.
constexpr int64_t kSmallestShared = 4096;
constexpr int64_t kNowhere = -1;

class SharedMemoryWork : public Work {
 public:
  SharedMemoryWork(std::shared_ptr<SharedTransfers> transfers,
                   std::shared_ptr<SharedTransfers::Transfer> transfer, int rank)
      : rank_(rank), transfers_(std::move(transfers)), transfer_(std::move(transfer)) {}

  void wait() override {
    check_not_forked(home_, rank_, "a collective");  // a forked child must not act for its parent
    transfers_->wait(*transfer_);
  }

 private:
  HomeProcess home_;
  int rank_;
  std::shared_ptr<SharedTransfers> transfers_;
  std::shared_ptr<SharedTransfers::Transfer> transfer_;
};

class SharedMemoryCommunicator : public Communicator {
 public:
  SharedMemoryCommunicator(const Environment& environment, std::unique_ptr<HostRanks> ranks,
                           StorePointer store)
      : Communicator(environment.rank, environment.world_size, environment.timeout),
        transfers_(std::make_shared<SharedTransfers>(std::move(ranks), environment.rank,
                                                     environment.world_size, environment.timeout)),
        store_(std::move(store)) {}

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    if (numel * static_cast<int64_t>(c10::elementSize(dtype)) >= kSmallestShared) {
      if (std::optional<at::Tensor> tensor = transfers_->arena().allocate(numel, dtype)) return *tensor;
    }
    return device().allocate(numel, dtype);
  }

  at::Tensor allocate_shared(int64_t numel, at::ScalarType dtype) override {
    const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
    at::Tensor place = at::empty({1}, at::kLong);
    int64_t& offset = *place.mutable_data_ptr<int64_t>();
    if (rank() == 0) offset = transfers_->blocks().reserve(bytes, world_size()).value_or(kNowhere);
    broadcast(place, 0, "the place of shared memory")->wait();
    return offset == kNowhere ? at::Tensor() : transfers_->blocks().open(offset, numel, dtype);
  }
  at::Tensor make_own(const at::Tensor& shared) override {
    transfers_->blocks().make_own(shared);
    return shared;
  }
  void give_back_pages(const at::Tensor& part) override { transfers_->blocks().give_back_pages(part); }
  bool shares_memory() const override { return true; }

  std::unique_ptr<Notices> open_notices() override { return make_notices(store_, boards_++); }
  int64_t scratch_bytes() const override { return transfers_->scratch_bytes(); }

 private:
  std::unique_ptr<Work> start(CollectiveCall call) override {
    return std::make_unique<SharedMemoryWork>(transfers_, transfers_->start(std::move(call)), rank());
  }

  std::shared_ptr<SharedTransfers> transfers_;
  StorePointer store_;
  int boards_ = 0;
};

}  // namespace

std::shared_ptr<Communicator> make_shared_memory_communicator(const Environment& environment,
                                                              const Joined& joined, const Deadline& deadline,
                                                              std::string& obstacle) {
  std::unique_ptr<HostRanks> ranks = meet_on_host(environment, joined, deadline, obstacle);
  if (!ranks) return nullptr;
  return std::make_shared<SharedMemoryCommunicator>(environment, std::move(ranks), joined.store);
}

}  // namespace zerorun
