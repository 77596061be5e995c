#include <memory>
#include <optional>
#include <string>

#include "engine/gathered_parameters.h"
#include "engine/parameter_states.h"
#include "python/src/engine_binding.h"
#include "zero/deferred_init.h"

namespace zerorun::python {
namespace {

namespace py = pybind11;

using NoGil = py::call_guard<py::gil_scoped_release>;

// A DeferredInit that Python opens and closes. A scope inside another one, or inside itself, does nothing. A
// thread must close its scope itself.
class DeferredScope {
 public:
  void enter() {
    if (depth_++ == 0 && !is_recording()) scope_ = std::make_unique<DeferredInit>();
  }
  void exit() {
    if (--depth_ == 0) scope_.reset();
  }

 private:
  int depth_ = 0;
  std::unique_ptr<DeferredInit> scope_;
};

}  // namespace

void bind_parameter_access(py::module_& module) {
  py::class_<GatherScope>(module, "GatherScope")
      .def(py::init(
          [](CoreEngine& core, const std::vector<at::Tensor>& parameters, std::optional<int> modifier_rank) {
            py::gil_scoped_release no_gil;
            return std::make_unique<GatherScope>(core.get(), parameters, modifier_rank);
          }))
      .def("close", &GatherScope::close, NoGil());
  module.def("state_names", [](CoreEngine& core, const at::Tensor& parameter) {
    return ParameterStates(core.get()).names(parameter);
  });
  module.def(
      "read_state",
      [](CoreEngine& core, const at::Tensor& parameter, const std::string& name) {
        return ParameterStates(core.get()).read(parameter, name);
      },
      NoGil());
  module.def("may_read_alone", [](CoreEngine& core) { return ParameterStates(core.get()).may_read_alone(); });
  module.def(
      "read_gradient",
      [](CoreEngine& core, const at::Tensor& parameter) {
        return ParameterStates(core.get()).read_gradient(parameter);
      },
      NoGil());
  module.def(
      "write_gradient",
      [](CoreEngine& core, const at::Tensor& parameter, const at::Tensor& values) {
        ParameterStates(core.get()).write_gradient(parameter, values);
      },
      NoGil());
  module.def(
      "write_state",
      [](CoreEngine& core, const at::Tensor& parameter, const std::string& name, const at::Tensor& values) {
        ParameterStates(core.get()).write(parameter, name, values);
      },
      NoGil());
  py::class_<DeferredScope>(module, "DeferredScope")
      .def(py::init<>())
      .def("enter", &DeferredScope::enter)
      .def("exit", &DeferredScope::exit);
  module.def("is_deferred", &is_deferred);
  module.def("make_tensor", &make_tensor, NoGil());
}

}  // namespace zerorun::python
