// Describes a Python module to the engine: names, tensors and a mode (training or evaluation). The engine
// reads the mode on any thread while it holds its locks, and a thread that holds the GIL may wait for these
// locks. To avoid deadlocks the engine never calls into Python: the mode is a flag that Python sets.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/model.h"

namespace zerorun::python {

using Mode = std::atomic<bool>;  // whether the model trains

/// `needs_values`: tensors on the device "meta" are refused. Throws UserError.
Model make_model(Model::NamedTensors parameters, Model::NamedTensors buffers,
                 Model::NamedTensors unsaved_buffers, std::shared_ptr<Mode> mode, bool needs_values = true);

}  // namespace zerorun::python
