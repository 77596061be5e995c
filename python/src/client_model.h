// A Python module as the engine takes it: names, tensors and a mode. The engine asks for the mode on any
// thread with its locks held, and a thread that holds the GIL may wait for those locks: so the mode is a flag
// that Python sets, and the engine never calls into Python.
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

Model make_model(Model::NamedTensors parameters, Model::NamedTensors buffers, std::shared_ptr<Mode> mode);

}  // namespace zerorun::python
