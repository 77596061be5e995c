#include "engine/model_broadcast.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>

#include <limits>
#include <utility>

#include "base/error.h"
#include "device/dtypes.h"
#include "zero/deferred_init.h"

namespace zerorun {

void broadcast_tensor(const NamedTensor& named, int root, Communicator& communicator) {
  c10::NoGradGuard no_grad;
  const at::Tensor& tensor = named.tensor;
  at::Tensor flat = tensor.detach().contiguous().view({-1});
  communicator.broadcast(flat, root, named.name)->wait();
  if (flat.const_data_ptr() != tensor.const_data_ptr()) tensor.detach().copy_(flat.view(tensor.sizes()));
}

namespace {

// Plain memory with the sizes, strides and dtype of `tensor`.
at::Tensor place_like(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

at::Tensor values_of(const NamedTensor& deferred) try {
  return make_tensor(deferred.tensor);
} catch (const UserError& error) {
  throw UserError("the values of " + deferred.name + ": " + error.what());
}

void move_and_broadcast(const NamedTensor& other, const Mesh& mesh, bool has_tensor_plan, Failure& unfilled) {
  Communicator& communicator = mesh.data();
  at::Tensor tensor = other.tensor;  // copies only the handle: set_data() changes the model's tensor
  if (is_deferred(tensor)) {
    at::Tensor values = place_like(tensor);
    if (communicator.rank() == 0) {
      Failure failure = failure_of([&] { values = values_of(other); });
      if (failure && values.is_floating_point()) values.fill_(std::numeric_limits<double>::quiet_NaN());
      if (!unfilled) unfilled = std::move(failure);
    }
    tensor.set_data(values);
  }
  const c10::Device device = communicator.device().location();
  const at::ScalarType dtype = other.dtype ? scalar_type(*other.dtype) : tensor.scalar_type();
  if (tensor.device() != device || tensor.scalar_type() != dtype) {
    tensor.set_data(tensor.detach().to(device, dtype));
  }
  if (has_tensor_plan && communicator.rank() == 0) broadcast_tensor(other, 0, mesh.along(MeshAxis::tensor));
  if (other.tied && communicator.rank() == 0) broadcast_tensor(other, 0, *other.tied);
  broadcast_tensor(other, 0, communicator);
}

}  // namespace

Failure broadcast_others(const ModelParameters& model, const Mesh& mesh) {
  Failure unfilled;
  for (const auto* others : {&model.unbucketed, &model.unsaved}) {
    for (const NamedTensor& other : *others) move_and_broadcast(other, mesh, model.has_tensor_plan, unfilled);
  }
  return unfilled;
}

}  // namespace zerorun
