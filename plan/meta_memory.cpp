#include "plan/meta_memory.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/memory_report.h"

namespace zerorun {

struct MetaMemory::Tally {
  struct Bytes {
    std::atomic<int64_t> held = 0;  // a tensor may be freed on another thread
    int64_t peak = 0;
    void add(int64_t bytes) { peak = std::max<int64_t>(peak, held += bytes); }
  };
  Bytes all, of_transfers;
};

namespace {

thread_local std::shared_ptr<MetaMemory::Tally> current;

void report(void* what, int64_t bytes) {
  c10::reportMemoryUsageToProfiler(what, bytes, 0, 0, c10::kMeta);
}

// The context of a counted storage's data pointer, whose address is null.
struct Counted {
  std::shared_ptr<MetaMemory::Tally> tally;
  int64_t bytes;
  bool is_of_transfer;
};

bool is_in_transfer() {
  const std::optional<MemoryUse> use = AllocatingFor::current();
  return use == MemoryUse::gathered || use == MemoryUse::messages;
}

void end_counted(void* context) {
  const std::unique_ptr<Counted> counted(static_cast<Counted*>(context));
  counted->tally->all.held -= counted->bytes;
  if (counted->is_of_transfer) counted->tally->of_transfers.held -= counted->bytes;
  report(context, -counted->bytes);
}

// LibTorch's own allocator of the meta device allocates nothing too.
class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (!current || size == 0) return {nullptr, c10::kMeta};
    const auto bytes = static_cast<int64_t>(size);
    auto counted = std::make_unique<Counted>(Counted{current, bytes, is_in_transfer()});
    current->all.add(bytes);
    if (counted->is_of_transfer) current->of_transfers.add(bytes);
    report(counted.get(), bytes);
    return {nullptr, counted.release(), &end_counted, c10::kMeta};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

void install_counting() {
  static std::once_flag once;
  std::call_once(once, [] {
    static auto& allocator = *new CountingAllocator;  // storages may outlive everything else
    c10::SetAllocator(c10::kMeta, &allocator, /*priority=*/1);
  });
}

}  // namespace

MetaMemory::MetaMemory() : tally_(std::make_shared<Tally>()) {
  ZR_CHECK(!current, "this thread's meta tensors are counted already");
  install_counting();
  current = tally_;
}

MetaMemory::~MetaMemory() {
  current.reset();
}

int64_t MetaMemory::peak() const {
  return tally_->all.peak;
}

int64_t MetaMemory::peak_of_transfers() const {
  return tally_->of_transfers.peak;
}

UncountedMetaMemory::UncountedMetaMemory() : outer_(std::exchange(current, nullptr)) {}

UncountedMetaMemory::~UncountedMetaMemory() {
  current = std::move(outer_);
}

}  // namespace zerorun
