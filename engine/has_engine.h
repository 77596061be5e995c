// Whether a tensor is a parameter of an engine of this process (engine/parameter_owners.h). Any thread.
#pragma once

#include <ATen/core/Tensor.h>

namespace zerorun {

/// Whether an engine has the parameter in its buckets.
bool has_engine(const at::Tensor& parameter);

}  // namespace zerorun
