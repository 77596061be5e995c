// ZeroRun's errors as Python exceptions: zerorun.Error and its subclasses. The caller holds the GIL.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace zerorun::python {

/// Adds the exception classes to `module`. From then on functions of this extension raise them. LibTorch's
/// errors, and Python exceptions that passed through autograd, are raised with their own types.
void add_errors(pybind11::module_& module);

}  // namespace zerorun::python
