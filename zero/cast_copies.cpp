#include "zero/cast_copies.h"

#include <ATen/ops/_to_copy.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "zero/cast_watch.h"
#include "zero/interception.h"

namespace zerorun {

struct CastCopies::Ledger {
  std::mutex mutex;
  std::set<Copy*> copies;
  std::vector<int64_t> changes;  // by parameter: how often its values have changed
  int64_t bytes = 0, peak_bytes = 0, casts = 0;

  void count(int64_t more) {
    const std::lock_guard lock(mutex);
    bytes += more;
    peak_bytes = std::max(peak_bytes, bytes);
    if (more > 0) ++casts;
  }
};

// Owns the storage of one copy, and is deleted with it. The operators that use the storage pin its memory,
// and keep the storage: they may drop their arguments before they end.
class CastCopies::Copy final : public StorageOwner, public OperatorListener {
 public:
  Copy(std::shared_ptr<Ledger> ledger, int parameter, const at::Tensor& source, at::ScalarType dtype,
       std::string name)
      : ledger_(std::move(ledger)),
        parameter_(static_cast<size_t>(parameter)),
        source_(marked_view(source.storage(), source.scalar_type(), source.sizes(), source.strides(),
                            source.storage_offset())),
        dtype_(dtype),
        name_(std::move(name)) {
    listener = this;
    storage_gone = [](StorageOwner* owner) { static_cast<Copy*>(owner)->forget(); };
    const std::lock_guard lock(ledger_->mutex);
    ledger_->copies.insert(this);
    changes_ = ledger_->changes[parameter_];
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
    const c10::Storage& storage = touched.front().tensor->storage();
    if (!memory_) cast(storage);
    if (pins_++ == 0) pinned_ = storage;
  }

  void leave(std::span<const Touched> /*touched*/) noexcept override {
    c10::Storage storage, memory;  // are dropped without the lock, which may delete this object
    const std::lock_guard lock(mutex_);
    note_use();
    if (--pins_ > 0) return;
    storage = std::move(pinned_);
    take_memory(storage);
    memory = std::move(memory_);
    ledger_->count(-static_cast<int64_t>(memory.nbytes()));
  }

  // The engine ends. Its storage, which `storage` keeps, ends as one without an owner.
  c10::Storage end() {
    const auto found = storage_.lock();
    if (!found) return {};  // forget() follows
    c10::Storage storage(found);
    leave_without_memory(storage, message());
    return storage;
  }

 private:
  std::string message() const {
    return "the copy of '" + name_ +
           "' that autocast has made has memory only while an operator uses it: read the parameter within a "
           "GatheredParameters scope, or cast it yourself with .to()";
  }

  void hold(const c10::Storage& storage, c10::Storage memory) {
    memory_ = std::move(memory);
    give_memory(storage, memory_.mutable_data());
    ledger_->count(static_cast<int64_t>(memory_.nbytes()));
  }

  void cast(const c10::Storage& storage) {
    const c10::NoGradGuard no_grad;
    const CastWatchPause no_copy_of_this_copy;
    const at::Tensor again = at::_to_copy(source_, source_.options().dtype(dtype_));
    check_unchanged();
    hold(storage, again.storage());
  }

  void check_unchanged() const {
    const std::lock_guard lock(ledger_->mutex);
    if (ledger_->changes[parameter_] == changes_) return;
    throw UserError("'" + name_ +
                    "' has changed since autocast has copied it, and an operator needs it as it was: call "
                    "backward() before step() and before writing to parameters");
  }

  // Memory of a GPU may be given to other streams than those that use it.
  void note_use() const {
    const c10::Device device = memory_.device();
    if (device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.recordDataPtrOnStream(memory_.data_ptr(), guard.getStream(device));
  }

  void forget() {
    {
      const std::lock_guard lock(ledger_->mutex);
      ledger_->copies.erase(this);
    }
    if (memory_) ledger_->count(-static_cast<int64_t>(memory_.nbytes()));
    delete this;
  }

  std::shared_ptr<Ledger> ledger_;
  size_t parameter_;
  at::Tensor source_;
  at::ScalarType dtype_;
  std::string name_;
  int64_t changes_ = 0;  // of the parameter, when the copy was made
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_{c10::intrusive_ptr<c10::StorageImpl>()};

  std::mutex mutex_;  // guards the members below
  c10::Storage memory_;
  c10::Storage pinned_;  // this owner's storage, while an operator uses it
  int pins_ = 0;
};

CastCopies::CastCopies(size_t parameters) : ledger_(std::make_shared<Ledger>()) {
  ledger_->changes.resize(parameters);
}

CastCopies::~CastCopies() {
  std::vector<std::pair<Copy*, c10::Storage>> ended;
  {
    const std::lock_guard lock(ledger_->mutex);
    for (Copy* copy : std::exchange(ledger_->copies, {})) ended.emplace_back(copy, copy->end());
  }
  for (const auto& [copy, storage] : ended) {
    if (storage) delete copy;
  }
}

bool CastCopies::take_over(int parameter, const at::Tensor& source, const at::Tensor& copy,
                           const std::string& name) {
  const bool is_whole = copy.storage_offset() == 0 && copy.storage().use_count() == 1 && copy.numel() > 0 &&
                        copy.storage().nbytes() == copy.nbytes();
  if (!is_whole || copy.strides() != source.strides() || copy.device() != source.device()) return false;
  auto* owner = new Copy(ledger_, parameter, source, copy.scalar_type(), name);  // deleted with the storage
  owner->adopt(copy);
  return true;
}

void CastCopies::note_changed(std::span<const int> parameters) {
  const std::lock_guard lock(ledger_->mutex);
  for (const int parameter : parameters) ++ledger_->changes[static_cast<size_t>(parameter)];
}

void CastCopies::add_to(ResidencyReport& report) const {
  const std::lock_guard lock(ledger_->mutex);
  report.casts = ledger_->casts;
  report.cast_bytes = ledger_->bytes;
  report.peak_cast_bytes = ledger_->peak_bytes;
}

}  // namespace zerorun
