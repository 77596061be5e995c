#include <pybind11/functional.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "activations/measured_memory.h"
#include "comm/agreement.h"
#include "engine/gathered_parameters.h"
#include "engine/parameter_states.h"
#include "engine/recomputed_modules.h"
#include "engine/tensor_parallel.h"
#include "python/src/client_model.h"
#include "python/src/engine_binding.h"
#include "zero/cast_watch.h"
#include "zero/deferred_init.h"

namespace zerorun::python {
namespace {

namespace py = pybind11;

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

// The open scopes of a Python object that `with` may enter several times, also inside itself. __enter__ and
// __exit__ are no Python code, at whose start Ctrl-C could raise KeyboardInterrupt: then the scope would stay
// open. Python's part: _prepare(depth) returns the arguments of a GatherScope or None, and _leave(depth,
// failed) returns whether the scope ends as after an exception.
class ScopeStack {
 public:
  static py::object enter(const py::object& self) {
    auto& stack = self.cast<ScopeStack&>();
    const size_t depth = stack.open_.size();
    const py::object arguments = self.attr("_prepare")(depth);
    std::unique_ptr<GatherScope> scope = arguments.is_none() ? nullptr : make(arguments.cast<py::tuple>());
    stack.open_.push_back(std::move(scope));
    return self;
  }

  static bool exit(const py::object& self, const py::object& kind) {
    auto& stack = self.cast<ScopeStack&>();
    if (stack.open_.empty()) return false;
    const std::unique_ptr<GatherScope> scope = std::move(stack.open_.back());
    stack.open_.pop_back();
    const bool failed = !kind.is_none();
    const bool abandoned =
        self.attr("_leave")(stack.open_.size(), failed).cast<bool>();  // if it throws, ~GatherScope() closes
    if (!scope) return false;
    const py::gil_scoped_release no_gil;
    scope->close(failed || abandoned);
    return false;
  }

 private:
  static std::unique_ptr<GatherScope> make(const py::tuple& arguments) {
    auto& core = arguments[0].cast<CoreEngine&>();
    const auto parameters = arguments[1].cast<std::vector<at::Tensor>>();
    const auto modifier_rank = arguments[2].cast<std::optional<int>>();
    const InCall in_call;
    const py::gil_scoped_release no_gil;
    return std::make_unique<GatherScope>(core.get(), parameters, modifier_rank);
  }

  std::vector<std::unique_ptr<GatherScope>> open_;  // null: nothing to gather
};

void bind_tensor_ranks(py::module_& module) {
  module.def(
      "texts_of_tensor_ranks",  // a collective of the tensor group
      [](CoreEngine& core, const std::string& text) {
        return exchange_texts(text, core.get().mesh().along(MeshAxis::tensor), "texts of the program");
      },
      NoGil());
  // The losses are functions of Python, which take the GIL back.
  module.def(
      "verify_plan",
      [](CoreEngine& core, Model::NamedTensors whole, const std::function<at::Tensor()>& loss_of_whole,
         const std::function<at::Tensor()>& loss, double tolerance) {
        const Model model = make_model(std::move(whole), {}, {}, std::make_shared<Mode>(true));
        verify_plan(core.get(), model, loss_of_whole, loss, tolerance);
      },
      NoGil());
}

}  // namespace

// An object that has an effect as long as it lives, as a context.
template <typename Kept>
struct Context {
  std::optional<Kept> kept;
};

template <typename Kept>
py::class_<Context<Kept>> bind_context(py::module_& module, const char* name) {
  return py::class_<Context<Kept>>(module, name)
      .def(py::init<>())
      .def("__enter__",
           [](Context<Kept>& context) -> Context<Kept>& {
             context.kept.emplace();
             return context;
           })
      .def("__exit__", [](Context<Kept>& context, const py::args& /*exception*/) { context.kept.reset(); });
}

void bind_recomputation(py::module_& module) {
  bind_context<CastWatch>(module, "CastWatch");
  bind_context<MeasuredMemory>(module, "MeasuredMemory")
      .def("held", [](const Context<MeasuredMemory>& context) { return context.kept->held(); });
  module.def("recomputes_block", [](CoreEngine& core, const std::string& name) {
    return RecomputedModules(core.get()).chooses(name);
  });
  module.def("measures_blocks", [](CoreEngine& core) { return RecomputedModules(core.get()).measures(); });
  module.def("add_cost_of_block",
             [](CoreEngine& core, const std::string& name, int64_t inputs, int64_t activations,
                double seconds) { RecomputedModules(core.get()).add(name, inputs, activations, seconds); });
}

void bind_parameter_access(py::module_& module) {
  bind_recomputation(module);
  py::class_<ScopeStack>(module, "ScopeStack", py::dynamic_attr())
      .def(py::init<>())
      .def("__enter__", &ScopeStack::enter)
      .def("__exit__", [](const py::object& self, const py::object& kind, const py::object&,
                          const py::object&) { return ScopeStack::exit(self, kind); });
  py::class_<GatherScope>(module, "GatherScope")
      .def(py::init(
          [](CoreEngine& core, const std::vector<at::Tensor>& parameters, std::optional<int> modifier_rank) {
            const InCall in_call;
            const py::gil_scoped_release no_gil;
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
  module.def("has_parameters", [](CoreEngine& core) { return ParameterStates(core.get()).has_parameters(); });
  module.def("may_read_alone", [](CoreEngine& core) { return ParameterStates(core.get()).may_read_alone(); });
  module.def("stays_whole", [](CoreEngine& core, const at::Tensor& parameter) {
    return ParameterStates(core.get()).stays_whole(parameter);
  });
  module.def("is_split", [](CoreEngine& core, const at::Tensor& parameter) {
    return ParameterStates(core.get()).is_split(parameter);
  });
  module.def("whole_sizes", [](CoreEngine& core, const at::Tensor& parameter) {
    return ParameterStates(core.get()).whole_sizes(parameter);
  });
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
  bind_tensor_ranks(module);
  py::class_<DeferredScope>(module, "DeferredScope")
      .def(py::init<>())
      .def("enter", &DeferredScope::enter)
      .def("exit", &DeferredScope::exit);
  module.def("is_deferred", &is_deferred);
  module.def("make_tensor", &make_tensor, NoGil());
}

}  // namespace zerorun::python
