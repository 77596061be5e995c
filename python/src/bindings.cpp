// The extension module zerorun._core. Only the Python files of the package zerorun call it, programs do not.

#include <utility>

#include "base/activity_board.h"
#include "base/program.h"
#include "python/src/engine_binding.h"
#include "python/src/errors.h"
#include "zero/interception.h"

PYBIND11_MODULE(_core, module) {
  namespace py = pybind11;
  module.attr("version") = ZERORUN_VERSION;
  zerorun::python::add_errors(module);
  zerorun::python::bind_engine(module);
  zerorun::python::bind_starting(module);
  zerorun::python::bind_plan(module);
  zerorun::python::bind_live_line(module);
  zerorun::python::bind_parameter_access(module);
  zerorun::python::bind_checkpoint_facts(module);
  module.def("key_is_free", &zerorun::interception_key_is_free);
  module.def("lies_in_engine", [](const at::Tensor& tensor) { return zerorun::owner_of(tensor) != nullptr; });
  zerorun::give_noted_failures_an_exit_code();
  module.def("note_failure", &zerorun::note_failure);
  module.def("survive_termination", &zerorun::survive_termination);
  module.def("stack_file", [] {
    const zerorun::StackFile file = zerorun::activity::stack_file();
    return std::pair(file.signal, file.descriptor);
  });
}
