// Binds the live line of an engine.
#include <memory>

#include "engine/live_line.h"
#include "python/src/engine_binding.h"

namespace zerorun::python {

namespace py = pybind11;
using namespace pybind11::literals;  // NOLINT(google-build-using-namespace): names of arguments

void bind_live_line(py::module_& module) {
  py::class_<LiveLine>(module, "LiveLine")
      .def(py::init([](CoreEngine& core, int64_t steps, int64_t tokens_per_step) {
             return std::make_unique<LiveLine>(
                 core.get(), LiveLine::Options{.steps = steps, .tokens_per_step = tokens_per_step});
           }),
           NoGil())
      .def(
          "show",
          [](LiveLine& line, int64_t steps, double loss, std::optional<double> lr,
             std::optional<double> grad_norm) {
            line.show({.steps = steps, .loss = loss, .lr = lr, .grad_norm = grad_norm});
          },
          NoGil())
      .def("end", &LiveLine::end, NoGil());
}

}  // namespace zerorun::python
