#include "python/src/engine_binding.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/file_path.h"
#include "comm/agreement.h"
#include "comm/connect/rendezvous.h"
#include "comm/meeting/environment.h"
#include "config/check.h"
#include "config/config.h"
#include "engine/hidden_size.h"
#include "optim/schedule.h"

namespace zerorun::python {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;  // NOLINT(google-build-using-namespace): names of arguments

struct Given {
  Model::NamedTensors parameters;
  Model::NamedTensors buffers;
  Model::NamedTensors unsaved_buffers;
  std::string config;     // the text of a ds_config.json
  std::string origin;     // the config's name in messages
  std::string optimizer;  // a ds_config.json with only the program's optimizer; empty: the program has none
  std::shared_ptr<PythonOptimizer> python_optimizer;  // the program's, which has no such description
  std::vector<ParameterGroup> groups;
  Arguments arguments;
  bool has_schedule = false;  // the program passes a schedule
  std::string output_folder;
  std::optional<std::tuple<int, int, int>>
      mesh;  // sizes of data (0: what the others leave), tensor, pipeline
};

std::optional<MeshSizes> sizes_of(const Given& given) {
  if (!given.mesh) return std::nullopt;
  const auto [data, tensor, pipeline] = *given.mesh;
  return MeshSizes{.data = data, .tensor = tensor, .pipeline = pipeline};
}

bool requires_grad(const Model& model) {
  return std::ranges::any_of(model.parameters,
                             [](const auto& named) { return named.second.requires_grad(); });
}

// An engine has no optimizer if neither the config nor the program names one, or if the config names one for
// a model that is frozen: a reference model, or one that is only evaluated.
Config read_config(const Given& given, const Model& model, int world_size, bool& computes_only) {
  Config config = parse_config(given.config, given.origin,
                               {.world_size = world_size,
                                .mesh = sizes_of(given),
                                .arguments = given.arguments,
                                .hidden_size = hidden_size_of(model)});
  const bool is_python = given.python_optimizer != nullptr;
  if (!given.optimizer.empty() || is_python) {
    if (config.optimizer) {
      throw UserError(
          "both the config and the program name an optimizer: remove the config's \"optimizer\" block or do "
          "not pass "
          "one to initialize()");
    }
    if (!is_python)
      config.optimizer = parse_config(given.optimizer, "the optimizer passed to initialize()", 1).optimizer;
  }
  computes_only = !is_python && (!config.optimizer || (given.optimizer.empty() && !requires_grad(model)));
  if (computes_only && given.has_schedule) {
    throw UserError(
        "lr_scheduler without an optimizer: add an \"optimizer\" block to the config or pass one to "
        "initialize()");
  }
  if (config.scheduler && given.has_schedule) {
    throw UserError(
        "both the config and the program name a schedule: remove the config's \"scheduler\" block or do not "
        "pass "
        "lr_scheduler to initialize()");
  }
  return config;
}

std::unique_ptr<CoreEngine, WithoutGil> start(Given given) {
  auto mode = std::make_shared<Mode>(true);
  Model model = make_model(std::move(given.parameters), std::move(given.buffers),
                           std::move(given.unsaved_buffers), mode);
  InitializeOptions options;
  options.communicator = connect();
  const Config config = read_config(given, model, options.communicator->world_size(), options.computes_only);
  options.mesh = sizes_of(given);
  options.marks_gradients = true;
  options.output_folder = given.output_folder;
  options.optimizer = given.python_optimizer.get();
  if (!options.optimizer && !options.computes_only) options.parameter_groups = std::move(given.groups);
  Engine engine = initialize(std::move(model), config, options);
  return std::unique_ptr<CoreEngine, WithoutGil>(
      new CoreEngine(std::move(engine), mode, options.computes_only, given.python_optimizer));
}

bool allows_untested(const std::string& config, const std::string& origin) {
  return config::check_config(config, origin)
      .settings.get<bool>("zero_allow_untested_optimizer")
      .value_or(false);
}

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
             RestoredCheckpoint restored = [&] {
               const InCall in_call;
               const py::gil_scoped_release no_gil;
               return core.get().load_checkpoint(
                   folder, tag,
                   {.strict = strict, .optimizer_states = optimizer_states, .counters = counters});
             }();
             return std::tuple(py::bytes(restored.path.string()), std::move(restored.client_state),
                               std::move(restored.client_tensors));
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

// This rank's place in the job, as the environment variables that torchrun would set. Works also if srun,
// mpirun or mpiexec has started the rank.
std::map<std::string, std::string> variables_of_place() {
  const Environment place = Environment::read();
  std::map<std::string, std::string> variables = {
      {"RANK", std::to_string(place.rank)},
      {"WORLD_SIZE", std::to_string(place.world_size)},
      {"LOCAL_RANK", std::to_string(place.local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(place.local_world_size)},
      {"MASTER_ADDR", place.master_addr},
      {"MASTER_PORT", std::to_string(place.master_port)}};
  if (!place.job.empty()) variables.emplace("ZERORUN_JOB", place.job);
  return variables;
}

// Connects the job's ranks on the CPU, so that they can exchange numbers before training.
class Meeting {
 public:
  int64_t from_rank_0(int64_t number) {
    const at::Tensor told = at::full({1}, number, at::kLong);
    ranks_->broadcast(told, 0, "a number of rank 0")->wait();
    return told.item<int64_t>();
  }
  void wait() { ranks_->barrier("a meeting of the program")->wait(); }

 private:
  static std::shared_ptr<Communicator> connect_on_cpu() {
    Environment environment = Environment::read();
    environment.device = DeviceChoice::cpu;
    return connect(environment);
  }

  std::shared_ptr<Communicator> ranks_ = connect_on_cpu();
};

// A schedule as in a ds_config.json. The program advances it, not the engine.
class ProgramSchedule {
 public:
  explicit ProgramSchedule(const std::string& block)
      : config_(*parse_config("{\"train_micro_batch_size_per_gpu\": 1, \"scheduler\": " + block + "}",
                              "the schedule's arguments", 1)
                     .scheduler) {}
  std::pair<double, std::optional<std::pair<double, double>>> values(int64_t step, int group,
                                                                     double base_lr) const {
    const ScheduledValues values = scheduled_values(config_, group, base_lr, step);
    return {values.lr, values.betas};
  }

 private:
  SchedulerConfig config_;
};

}  // namespace

namespace {

thread_local InCall* innermost = nullptr;

}  // namespace

InCall::InCall() : outer_(std::exchange(innermost, this)) {}

InCall::~InCall() {
  innermost = outer_;
  for (CoreEngine* engine : engines_) {
    const std::lock_guard lock(engine->mutex_);
    --engine->calls_;
  }
}

// A call without an InCall keeps the GIL, without which destroy() cannot take the engine.
Engine& CoreEngine::get() {
  const std::lock_guard lock(mutex_);
  if (!engine_) throw UserError("the engine is destroyed: make another one with zerorun.initialize()");
  if (innermost != nullptr) {
    innermost->engines_.push_back(this);
    ++calls_;
  }
  return *engine_;
}

void CoreEngine::check_idle() {
  const std::lock_guard lock(mutex_);
  if (calls_ == 0) return;
  throw UserError(
      "engine.destroy() while a call of the engine runs, in another thread or around this one: wait "
      "until it has returned");
}

std::optional<Engine> CoreEngine::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(engine_, std::nullopt);
}

void CoreEngine::destroy() {
  check_idle();
  std::optional<Engine> taken = take();
  const py::gil_scoped_release no_gil;
  taken.reset();
}

// Destructors ask std::uncaught_exceptions(), which does not count exceptions of Python.
void CoreEngine::destroy_after_exception() {
  struct Ending {
    std::optional<Engine> engine;
    ~Ending() { engine.reset(); }
  };
  check_idle();
  std::optional<Engine> taken = take();
  try {
    const py::gil_scoped_release no_gil;
    const Ending ending{std::move(taken)};
    throw Error("an exception has ended the program");
  } catch (const Error&) {
  }
}

void WithoutGil::operator()(CoreEngine* engine) const {
  if (!PyGILState_Check()) {
    delete engine;
    return;
  }
  py::gil_scoped_release no_gil;
  delete engine;
}

void bind_engine(py::module_& module) {
  py::class_<ParameterGroup>(module, "ParameterGroup")
      .def(py::init<>())
      .def_readwrite("parameters", &ParameterGroup::parameters)
      .def_readwrite("lr", &ParameterGroup::lr)
      .def_readwrite("weight_decay", &ParameterGroup::weight_decay)
      .def_readwrite("betas", &ParameterGroup::betas)
      .def_readwrite("eps", &ParameterGroup::eps);
  py::class_<PythonOptimizer, std::shared_ptr<PythonOptimizer>>(module, "PythonOptimizer")
      .def(py::init<py::object, const std::vector<ParameterGroup>&>());
  py::class_<Given>(module, "Given")
      .def(py::init<>())
      .def_readwrite("parameters", &Given::parameters)
      .def_readwrite("buffers", &Given::buffers)
      .def_readwrite("unsaved_buffers", &Given::unsaved_buffers)
      .def_readwrite("config", &Given::config)
      .def_readwrite("origin", &Given::origin)
      .def_readwrite("optimizer", &Given::optimizer)
      .def_readwrite("python_optimizer", &Given::python_optimizer)
      .def_readwrite("groups", &Given::groups)
      .def_readwrite("arguments", &Given::arguments)
      .def_readwrite("has_schedule", &Given::has_schedule)
      .def_readwrite("output_folder", &Given::output_folder)
      .def_readwrite("mesh", &Given::mesh);
  EngineClass engine(module, "Engine");
  bind_training(engine);
  bind_checkpoints(engine);
  bind_facts(engine);
  py::class_<NoSyncScope>(module, "NoSync")
      .def(py::init<CoreEngine&>(), py::keep_alive<1, 2>())
      .def("enter", &NoSyncScope::enter)
      .def("exit", &NoSyncScope::exit);
  module.def("start", &start, NoGil());
  module.def("allows_untested", &allows_untested);
  module.def("variables_of_place", &variables_of_place);
  py::class_<Meeting>(module, "Meeting")
      .def(py::init([] {
        py::gil_scoped_release no_gil;
        return std::make_unique<Meeting>();
      }))
      .def("from_rank_0", &Meeting::from_rank_0, NoGil())
      .def("wait", &Meeting::wait, NoGil());
  py::class_<ProgramSchedule>(module, "Schedule")
      .def(py::init<const std::string&>())
      .def("values", &ProgramSchedule::values);
}

}  // namespace zerorun::python
