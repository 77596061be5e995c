#include "python/src/engine_binding.h"

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/file_path.h"
#include "comm/agreement.h"
#include "python/src/python_function.h"

namespace zerorun::python {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;  // NOLINT(google-build-using-namespace): names of arguments

class NoSyncScope {
 public:
  explicit NoSyncScope(CoreEngine& core) : core_(&core) {}
  void enter() { scope_.emplace(core_->get()); }
  void exit() { scope_.reset(); }

 private:
  struct Held {
    explicit Held(Engine& engine) : scope(engine.no_sync()) {}
    Engine::NoSync scope;
  };
  CoreEngine* core_;
  std::optional<Held> scope_;
};

std::tuple<py::bytes, std::string, std::map<std::string, at::Tensor>> as_tuple(RestoredCheckpoint restored) {
  return {py::bytes(restored.path.string()), std::move(restored.client_state),
          std::move(restored.client_tensors)};
}

ClientState state_of(const PythonFunction& function) {
  auto [json, tensors] = function.call<std::pair<std::string, std::map<std::string, at::Tensor>>>();
  return {.json = std::move(json), .tensors = std::move(tensors)};
}

template <typename Class>
void bind_training(Class& engine) {
  engine
      .def(
          "backward",
          [](CoreEngine& core, const at::Tensor& loss, bool retain, bool create) {
            core.get().backward(loss, retain, create);
          },
          "loss"_a, "retain_graph"_a = false, "create_graph"_a = false, NoGil())
      .def(
          "scale", [](CoreEngine& core, const at::Tensor& loss) { return core.get().scale(loss); }, NoGil())
      .def(
          "step", [](CoreEngine& core) { core.get().step(); }, NoGil())
      .def(
          "hold_generation",  // returns whether steps are held
          [](CoreEngine& core) {
            core.get().hold_generation();
            return core.get().holds_generations();
          },
          NoGil())
      .def(
          "zero_grad", [](CoreEngine& core) { core.get().zero_grad(); }, NoGil())
      .def("set_boundary",
           [](CoreEngine& core, bool is) { core.get().set_gradient_accumulation_boundary(is); })
      .def("is_boundary", [](CoreEngine& core) { return core.get().is_gradient_accumulation_boundary(); })
      .def(
          "cast_input",
          [](CoreEngine& core, const at::Tensor& input) { return core.get().cast_input(input); }, NoGil())
      .def(
          "synchronize", [](CoreEngine& core) { core.get().synchronize(); }, NoGil())
      .def(
          "set_lr", [](CoreEngine& core, int group, double lr) { core.get().set_lr(group, lr); }, NoGil())
      .def(
          "set_betas",
          [](CoreEngine& core, int group, std::pair<double, double> betas) {
            core.get().set_betas(group, betas);
          },
          NoGil())
      .def(
          "set_weight_decay",
          [](CoreEngine& core, int group, double value) { core.get().set_weight_decay(group, value); },
          NoGil())
      .def(
          "release_schedule", [](CoreEngine& core) { core.get().release_schedule(); }, NoGil())
      .def(
          "set_scheduled", [](CoreEngine& core, int64_t steps) { core.get().set_scheduled(steps); }, NoGil())
      .def("set_training", &CoreEngine::set_training)
      .def("check_idle", &CoreEngine::check_idle)
      .def("destroy", &CoreEngine::destroy)
      .def("destroy_after_exception", &CoreEngine::destroy_after_exception);
}

// Paths and tags come as bytes, because a name of a file need not be UTF-8.
template <typename Class>
void bind_checkpoints(Class& engine) {
  engine
      .def(
          "save_checkpoint",
          [](CoreEngine& core, const std::string& folder, const std::string& tag,
             const std::string& client_state, const std::map<std::string, at::Tensor>& client_tensors,
             bool save_latest, bool exclude_frozen, int64_t keep_last, bool asynchronous) {
            core.get().save_checkpoint(folder, tag,
                                       {.client_state = client_state,
                                        .client_tensors = client_tensors,
                                        .save_latest = save_latest,
                                        .exclude_frozen = exclude_frozen,
                                        .keep_last = keep_last,
                                        .asynchronous = asynchronous});
          },
          NoGil())
      .def(
          "refuse_on_all_ranks",  // a collective: throws UserError if a rank has given a reason
          [](CoreEngine& core, const std::string& reason) {
            on_all_ranks(core.get().communicator(), "save_checkpoint()", [&] {
              if (!reason.empty()) throw UserError(reason);
            });
          },
          NoGil())
      .def("tag_of_rank_0",  // a collective
           [](CoreEngine& core, const std::string& tag) {
             const std::string of_rank_0 = [&] {
               const py::gil_scoped_release no_gil;
               return exchange_texts(tag, core.get().communicator(), "the tag of save_checkpoint()").front();
             }();
             return py::bytes(of_rank_0);
           })
      .def(
          "has_checkpoint",  // a collective: whether `folder` names a checkpoint where rank 0 looks
          [](CoreEngine& core, const std::string& folder) {
            Communicator& communicator = core.get().communicator();
            on_all_ranks(communicator, "load_checkpoint()",
                         [&] { check_path(folder, "", "load_checkpoint"); });
            std::error_code error;
            const bool is_there = communicator.rank() == 0 &&
                                  std::filesystem::exists(std::filesystem::path(folder) / "latest", error);
            return !exchange_texts(is_there ? "there" : "", communicator, "load_checkpoint()")
                        .front()
                        .empty();
          },
          NoGil())
      .def(
          "wait_for_checkpoint", [](CoreEngine& core) { core.get().wait_for_checkpoint(); }, NoGil())
      .def("load_checkpoint",
           [](CoreEngine& core, const std::string& folder, const std::string& tag, bool strict,
              bool optimizer_states, bool counters) {
             return as_tuple([&] {
               const InCall in_call;
               const py::gil_scoped_release no_gil;
               return core.get().load_checkpoint(
                   folder, tag,
                   {.strict = strict, .optimizer_states = optimizer_states, .counters = counters});
             }());
           })
      .def("load_newest",
           [](CoreEngine& core, const std::string& folder, bool strict, bool optimizer_states, bool counters,
              py::object client_state) -> std::optional<decltype(as_tuple({}))> {
             const PythonFunction own_state(std::move(client_state));
             std::optional<RestoredCheckpoint> restored = [&] {
               const InCall in_call;
               const py::gil_scoped_release no_gil;
               return core.get().load_newest(folder,
                                             {.strict = strict,
                                              .optimizer_states = optimizer_states,
                                              .counters = counters,
                                              .client_state = [own_state] { return state_of(own_state); },
                                              .holds_when_asked = true});
             }();
             if (!restored) return std::nullopt;
             return as_tuple(std::move(*restored));
           })
      .def(
          "save_16bit_model",
          [](CoreEngine& core, const std::string& folder, const std::string& file, bool exclude_frozen) {
            core.get().save_16bit_model(folder, file, exclude_frozen);
          },
          NoGil())
      .def(
          "offload_states", [](CoreEngine& core) { core.get().offload_states(); }, NoGil())
      .def(
          "reload_states", [](CoreEngine& core) { core.get().reload_states(); }, NoGil());
}

}  // namespace

void bind_engine(py::module_& module) {
  EngineClass engine(module, "Engine");
  bind_training(engine);
  bind_checkpoints(engine);
  bind_facts(engine);
  bind_pipeline(module, engine);
  py::class_<NoSyncScope>(module, "NoSync")
      .def(py::init<CoreEngine&>(), py::keep_alive<1, 2>())
      .def("enter", &NoSyncScope::enter)
      .def("exit", &NoSyncScope::exit);
}

}  // namespace zerorun::python
