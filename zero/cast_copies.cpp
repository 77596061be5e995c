#include "zero/cast_copies.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_to_copy.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "zero/interception.h"

namespace zerorun {

struct CastCopies::Ledger {
  std::mutex mutex;
  std::set<Copy*> copies;
  std::vector<int64_t> changes;  // by bucket: how often its values have changed
  int64_t bytes = 0, peak_bytes = 0, casts = 0;
};

// Owns the storage of one copy, and is deleted with it. The storage's users pin its memory.
class CastCopies::Copy final : public StorageOwner, public OperatorListener {
 public:
  Copy(std::shared_ptr<Ledger> ledger, int bucket, const at::Tensor& source, at::ScalarType dtype,
       std::string name)
      : ledger_(std::move(ledger)),
        bucket_(bucket),
        source_(marked_view(source.storage(), source.scalar_type(), source.sizes(), source.strides(),
                            source.storage_offset())),
        dtype_(dtype),
        name_(std::move(name)) {
    listener = this;
    storage_gone = [](StorageOwner* owner) { static_cast<Copy*>(owner)->forget(); };
    const std::lock_guard lock(ledger_->mutex);
    ledger_->copies.insert(this);
    changes_ = ledger_->changes[static_cast<size_t>(bucket_)];
  }

  // Makes `copy`, which has the memory of the first cast, a tensor on a storage of this owner.
  void adopt(const at::Tensor& copy) {
    const c10::Storage memory = copy.storage();
    const c10::Storage storage =
        make_owned_storage(*this, static_cast<int64_t>(memory.nbytes()), memory.device(), message());
    storage_ = storage.getWeakStorageImpl();
    hold(storage, memory);
    const at::Tensor view = marked_view(storage, dtype_, copy.sizes(), copy.strides(), 0);
    copy.unsafeGetTensorImpl()->shallow_copy_from(view.getIntrusivePtr());
  }

  void enter(const c10::OperatorHandle& /*op*/, std::span<const Touched> touched) override {
    const std::lock_guard lock(mutex_);
    if (touched.front().written)
      throw UserError("an operator writes to the copy of '" + name_ +
                      "' that autocast has made: cast the parameter yourself with .to()");
    if (!memory_) cast(touched.front().tensor->storage());
    ++pins_;
  }

  void leave(std::span<const Touched> /*touched*/) noexcept override {
    const std::lock_guard lock(mutex_);
    if (--pins_ > 0) return;
    if (const auto storage = storage_.lock()) take_memory(c10::Storage(storage));
    let_go();
  }

  // The engine ends. With the ledger's lock.
  void end() {
    const auto storage = storage_.lock();
    if (!storage) return;  // forget() follows
    leave_without_memory(c10::Storage(storage), message());
    ledger_->bytes -= nbytes();
    delete this;
  }

 private:
  std::string message() const {
    return "the copy of '" + name_ +
           "' that autocast has made has memory only while an operator uses it: read the parameter within a "
           "GatheredParameters scope, or cast it yourself with .to()";
  }

  int64_t nbytes() const { return memory_ ? static_cast<int64_t>(memory_.nbytes()) : 0; }

  void hold(const c10::Storage& storage, c10::Storage memory) {
    memory_ = std::move(memory);
    give_memory(storage, memory_.mutable_data());
    const std::lock_guard lock(ledger_->mutex);
    ++ledger_->casts;
    ledger_->bytes += nbytes();
    ledger_->peak_bytes = std::max(ledger_->peak_bytes, ledger_->bytes);
  }

  void cast(const c10::Storage& storage) {
    const at::AutoDispatchBelowAutograd below_autograd;
    const at::Tensor again = at::_to_copy(source_, source_.options().dtype(dtype_));
    check_unchanged();
    hold(storage, again.storage());
  }

  void check_unchanged() const {
    const std::lock_guard lock(ledger_->mutex);
    if (ledger_->changes[static_cast<size_t>(bucket_)] == changes_) return;
    throw UserError(
        "backward needs '" + name_ +
        "' as autocast has copied it in forward, and it, or a parameter of its bucket, has changed "
        "since: call backward() before step() and before writing to parameters");
  }

  // Memory of a GPU may be given to other streams than those that use it.
  void let_go() {
    const c10::Device device = memory_.device();
    if (!device.is_cpu()) {
      const c10::impl::VirtualGuardImpl guard(device.type());
      guard.recordDataPtrOnStream(memory_.data_ptr(), guard.getStream(device));
    }
    const std::lock_guard lock(ledger_->mutex);
    ledger_->bytes -= nbytes();
    memory_ = c10::Storage();
  }

  void forget() {
    const std::shared_ptr<Ledger> ledger = ledger_;
    const std::lock_guard lock(ledger->mutex);
    ledger->bytes -= nbytes();
    ledger->copies.erase(this);
    delete this;
  }

  std::shared_ptr<Ledger> ledger_;
  int bucket_;
  at::Tensor source_;
  at::ScalarType dtype_;
  std::string name_;
  int64_t changes_ = 0;  // of the bucket, when the copy was made
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_{c10::intrusive_ptr<c10::StorageImpl>()};

  std::mutex mutex_;  // guards the members below
  c10::Storage memory_;
  int pins_ = 0;
};

CastCopies::CastCopies(int buckets) : ledger_(std::make_shared<Ledger>()) {
  ledger_->changes.resize(static_cast<size_t>(buckets));
}

CastCopies::~CastCopies() {
  const std::lock_guard lock(ledger_->mutex);
  for (Copy* copy : std::exchange(ledger_->copies, {})) copy->end();
}

void CastCopies::take_over(int bucket, const at::Tensor& source, const at::Tensor& copy,
                           const std::string& name) {
  const bool is_whole = copy.storage_offset() == 0 && copy.storage().use_count() == 1 && copy.numel() > 0 &&
                        copy.storage().nbytes() == copy.nbytes();
  if (!is_whole || copy.strides() != source.strides() || copy.device() != source.device()) return;
  auto* owner = new Copy(ledger_, bucket, source, copy.scalar_type(), name);  // deleted with the storage
  owner->adopt(copy);
}

void CastCopies::note_changed(int bucket) {
  const std::lock_guard lock(ledger_->mutex);
  ++ledger_->changes[static_cast<size_t>(bucket)];
}

void CastCopies::add_to(ResidencyReport& report) const {
  const std::lock_guard lock(ledger_->mutex);
  report.casts = ledger_->casts;
  report.cast_bytes = ledger_->bytes;
  report.peak_cast_bytes = ledger_->peak_bytes;
}

}  // namespace zerorun
