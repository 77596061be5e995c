// How Python plans a training (plan/training_plan.h).
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/training_plan.h"
#include "python/src/engine_binding.h"
#include "python/src/given.h"

namespace zerorun::python {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;  // NOLINT(google-build-using-namespace): names of arguments

// Calls Python's forward(cast_input, settings). What no forward should catch (KeyboardInterrupt) is kept in
// `interrupt`. Both must outlive the result.
PlannedForward forward_of(const py::object& forward, std::exception_ptr& interrupt) {
  return [&](Engine& engine) -> at::Tensor {
    const py::gil_scoped_acquire gil;
    try {
      const auto cast_input =
          py::cpp_function([&engine](const at::Tensor& input) { return engine.cast_input(input); });
      const py::dict settings("recompute"_a = recompute_settings(engine.config().recompute),
                              "moves_activations"_a = false);
      return forward(cast_input, settings).cast<at::Tensor>();
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) interrupt = std::current_exception();
      throw Error(py::str(error.value()).cast<std::string>());
    }
  };
}

// Returns the plan as JSON. `forward` may be None. `options`: as on a command line, behind "--plan".
std::string plan(Given given, const py::object& forward, const std::vector<std::string>& options) {
  std::vector<const char*> arguments;
  for (const std::string& option : options) arguments.push_back(option.c_str());
  const auto request = parse_plan_request(static_cast<int>(arguments.size()), arguments.data());
  if (given.python_optimizer) {
    throw UserError(
        "plan(): a plan knows no optimizer that runs itself: name one of the config's optimizers "
        "(AdamW, SGD, ...) in the config");
  }
  std::exception_ptr interrupt;
  PlannedTraining training{.model = make_model(given.parameters, given.buffers, given.unsaved_buffers,
                                               std::make_shared<Mode>(true), /*needs_values=*/false),
                           .complete = [&given](Config& config) { complete(given, config); }};
  if (!forward.is_none()) training.forward = forward_of(forward, interrupt);
  training.options.mesh = sizes_of(given);
  training.options.pipeline = std::move(given.pipeline);
  training.options.tensor_plan = tensor_plan_of(given);
  training.options.attention_heads = given.attention_heads;
  training.options.parameter_groups = given.groups;
  training.options.arguments = given.arguments;
  const std::string answer = [&] {
    const py::gil_scoped_release no_gil;
    return to_json_text(plan_training(std::move(training), given.config, given.origin, request.value()));
  }();
  if (interrupt) std::rethrow_exception(interrupt);
  return answer;
}

}  // namespace

void bind_plan(py::module_& module) {
  module.def("plan", &plan);
}

}  // namespace zerorun::python
