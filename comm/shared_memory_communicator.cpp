#include "comm/shared_memory_communicator.h"

#include <optional>
#include <utility>

#include "comm/shared_transfers.h"

namespace zerorun {
namespace {

// Less is not worth pages of its own: it is copied when it is sent.
constexpr int64_t kSmallestShared = 4096;

class SharedMemoryWork : public Work {
 public:
  SharedMemoryWork(std::shared_ptr<SharedTransfers> transfers,
                   std::shared_ptr<SharedTransfers::Transfer> transfer)
      : transfers_(std::move(transfers)), transfer_(std::move(transfer)) {}

  void wait() override { transfers_->wait(*transfer_); }

 private:
  std::shared_ptr<SharedTransfers> transfers_;
  std::shared_ptr<SharedTransfers::Transfer> transfer_;
};

class SharedMemoryCommunicator : public Communicator {
 public:
  SharedMemoryCommunicator(const Environment& environment, std::unique_ptr<HostRanks> ranks,
                           StorePointer store)
      : Communicator(environment.rank, environment.world_size, environment.timeout),
        store_(std::move(store)),
        transfers_(std::make_shared<SharedTransfers>(std::move(ranks), environment.rank,
                                                     environment.world_size, environment.timeout)) {}

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    if (numel * static_cast<int64_t>(c10::elementSize(dtype)) >= kSmallestShared) {
      if (std::optional<at::Tensor> tensor = transfers_->arena().allocate(numel, dtype)) return *tensor;
    }
    return device().allocate(numel, dtype);
  }

  int64_t scratch_bytes() const override { return transfers_->scratch_bytes(); }

 private:
  std::unique_ptr<Work> start(CollectiveCall call) override {
    return std::make_unique<SharedMemoryWork>(transfers_, transfers_->start(std::move(call)));
  }

  StorePointer store_;  // rank 0 keeps it for ranks that are still connecting
  std::shared_ptr<SharedTransfers> transfers_;
};

}  // namespace

std::shared_ptr<Communicator> make_shared_memory_communicator(const Environment& environment,
                                                              const StorePointer& store,
                                                              const Deadline& deadline,
                                                              std::string& obstacle) {
  std::unique_ptr<HostRanks> ranks = meet_on_host(environment, store, deadline, obstacle);
  if (!ranks) return nullptr;
  return std::make_shared<SharedMemoryCommunicator>(environment, std::move(ranks), store);
}

}  // namespace zerorun
