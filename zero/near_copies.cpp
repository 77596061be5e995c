#include "zero/near_copies.h"

#include <utility>

#include "base/memory_report.h"
#include "device/dtypes.h"

namespace zerorun {

NearCopies::NearCopies(const Buckets& buckets, const SliceStore& store, Communicator* group) : group_(group) {
  if (!group) return;
  copies_.resize(static_cast<size_t>(store.count()));
  for (int bucket = 0; bucket < store.count(); ++bucket) {
    if (buckets.kind(bucket) != BucketKind::partitioned) continue;
    const int64_t numel = store.layout(bucket).numel / group->world_size();
    const int64_t bytes = numel * size_of(buckets.dtype());
    const AllocatingFor scope(MemoryUse::gathered, bytes);
    copies_[bucket].values = group->allocate(numel, scalar_type(buckets.dtype()));
    bytes_ += bytes;
  }
}

std::unique_ptr<Work> NearCopies::gather(int bucket, const at::Tensor& memory, std::string label,
                                         std::string reason) {
  return group_->all_gather(memory, copies_[bucket].values, std::move(label), std::move(reason));
}

void NearCopies::keep(int bucket, const at::Tensor& memory, bool is_rounded) {
  if (copies_.empty() || !copies_[bucket].values.defined()) return;
  Copy& copy = copies_[bucket];
  const int64_t numel = copy.values.numel();
  group_->device().copy(copy.values, memory.narrow(0, group_->rank() * numel, numel));
  copy.is_current = true;
  copy.is_rounded = is_rounded;
}

void NearCopies::drop(int bucket) {
  if (!copies_.empty()) copies_[bucket].is_current = false;
}

}  // namespace zerorun
