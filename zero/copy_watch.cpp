#include "zero/copy_watch.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>

#include "base/log.h"

namespace zerorun {

namespace {

// Whether autograd sees the operators of this thread, and so keeps what backward needs of them.
bool autograd_records() {
  return c10::GradMode::is_enabled() &&
         !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradCPU);
}

}  // namespace

CopyWatch::CopyWatch() : to_copy_(c10::Dispatcher::singleton().findSchemaOrThrow("aten::_to_copy", "")) {}

void CopyWatch::note(const c10::OperatorHandle& op, std::span<const Touched> touched) {
  if (done_ || !(op == to_copy_) || !autograd_records()) return;
  for (const Touched& item : touched) bytes_ += static_cast<int64_t>(item.tensor->nbytes());
}

void CopyWatch::forget(const at::Tensor& source) {
  if (!done_ && autograd_records()) bytes_ -= static_cast<int64_t>(source.nbytes());
}

void CopyWatch::finish_iteration(bool logs) {
  if (done_ || bytes_ == 0) return;
  done_ = true;
  if (!logs) return;
  log_warning("the model converted " + std::to_string(bytes_) +
              " bytes of partitioned parameters to another dtype or device in one iteration (autocast, "
              ".to()): the copies are not partitioned, stay in memory until backward, and are not counted by "
              "stage3_max_live_parameters");
}

}  // namespace zerorun
