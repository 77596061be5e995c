// Lends a model to a plan. One thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/model.h"

namespace zerorun {

/// During its lifetime the model's parameters and buffers are on LibTorch's meta device: the same tensors,
/// with sizes but no memory. Afterwards they are as they were, also if an engine had them meanwhile, which
/// must be gone by then. The model may have values, be on the meta device already, or be built under a
/// DeferredInit.
class ModelOnMeta {
 public:
  /// Throws UserError if a tensor belongs to an engine.
  explicit ModelOnMeta(const Model& model);
  ~ModelOnMeta();
  ModelOnMeta(const ModelOnMeta&) = delete;
  ModelOnMeta& operator=(const ModelOnMeta&) = delete;

 private:
  struct Lent {
    at::Tensor tensor;
    c10::intrusive_ptr<c10::TensorImpl> before;  // its memory, sizes and dtype
    at::Tensor gradient;
  };

  std::vector<Lent> lent_;
};

}  // namespace zerorun
