#include "python/src/client_model.h"

#include "base/error.h"

namespace zerorun::python {
namespace {

// Whether the operators of the tensor's class run in Python (DTensor, quantised weights). Such a tensor has
// no memory that the engine could partition.
bool runs_in_python(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Python);
}

void check(const std::string& kind, const std::string& name, const at::Tensor& tensor, bool needs_values) {
  if (runs_in_python(tensor)) {
    throw UserError(
        kind + " " + name +
        " is of a tensor class whose operators run in Python (a DTensor or a quantised weight): expected a "
        "plain torch.nn.Parameter; pass the model before it is distributed or quantised");
  }
  if (needs_values && tensor.is_meta()) {
    throw UserError(kind + " " + name +
                    " is on the device \"meta\" and has no values: build the model on the CPU, or under "
                    "zerorun.zero.Init(), "
                    "which takes no memory either");
  }
}

}  // namespace

Model make_model(Model::NamedTensors parameters, Model::NamedTensors buffers,
                 Model::NamedTensors unsaved_buffers, std::shared_ptr<Mode> mode, bool needs_values) {
  for (const auto& [name, tensor] : parameters) check("parameter", name, tensor, needs_values);
  for (const auto* each : {&buffers, &unsaved_buffers}) {
    for (const auto& [name, tensor] : *each) check("buffer", name, tensor, needs_values);
  }
  return {.parameters = std::move(parameters),
          .buffers = std::move(buffers),
          .unsaved_buffers = std::move(unsaved_buffers),
          .is_training = [mode] { return mode->load(); },
          .set_training = [mode](bool trains) { mode->store(trains); }};
}

}  // namespace zerorun::python
