#include "zero/deferred_init.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>

#include <sstream>

#include "base/error.h"
#include "zero/deferred_recorder.h"

namespace zerorun {
namespace {

const DeferredOwner& require_owner(const at::Tensor& tensor) {
  const DeferredOwner* owner = deferred_owner_of(tensor);
  ZR_CHECK(owner, "the tensor has its values already");
  return *owner;
}

void check_place(const at::Tensor& deferred, const at::Tensor& place) {
  auto text = [](const at::Tensor& tensor) {
    std::ostringstream out;
    out << tensor.scalar_type() << " " << tensor.sizes() << " strides " << tensor.strides();
    return out.str();
  };
  ZR_CHECK(!owner_of(place) && place.device().is_cpu() && place.scalar_type() == deferred.scalar_type() &&
               place.sizes() == deferred.sizes() && place.strides() == deferred.strides(),
           "place is " + text(place) + ", the values are " + text(deferred));
}

c10::Storage storage_of(const at::Tensor& place) {
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(place.nbytes()),
                      c10::DataPtr(place.mutable_data_ptr(), c10::DeviceType::CPU), nullptr, false);
}

}  // namespace

DeferredInit::DeferredInit() : recorder_(std::make_shared<DeferredRecorder>()), scope_(*recorder_) {}

DeferredInit::~DeferredInit() {
  recorder_->end_building();
}

bool is_deferred(const at::Tensor& tensor) {
  return deferred_owner_of(tensor) != nullptr;
}

void make_values(const at::Tensor& deferred, at::Tensor& place) {
  const DeferredOwner& owner = require_owner(deferred);
  check_place(deferred, place);
  if (deferred.numel() == 0) return;
  const OperatorTape& tape = owner.tape_owner->tape();
  const TapeTensor geometry = tape_tensor_of(deferred, owner);
  if (geometry.covers) {
    tape.replay(owner.storage, storage_of(place));
    return;
  }
  const c10::Storage whole = allocate_storage(tape.nbytes(owner.storage));
  tape.replay(owner.storage, whole);
  InterceptionPause pause;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  place.copy_(tensor_on(whole, geometry));
}

at::Tensor make_tensor(const at::Tensor& deferred) {
  const DeferredOwner& owner = require_owner(deferred);
  InterceptionPause pause;
  if (at::has_internal_overlap(deferred) == at::MemOverlap::No) {
    at::Tensor made = at::empty_strided(deferred.sizes(), deferred.strides(), deferred.scalar_type());
    make_values(deferred, made);
    return made;
  }
  // In an expanded tensor several elements share memory, so make_values() cannot write them. The whole
  // storage is computed instead.
  const OperatorTape& tape = owner.tape_owner->tape();
  const c10::Storage whole = allocate_storage(tape.nbytes(owner.storage));
  tape.replay(owner.storage, whole);
  return tensor_on(whole, tape_tensor_of(deferred, owner));
}

}  // namespace zerorun
