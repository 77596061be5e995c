// How Python starts an engine: what it gives, the ranks' meeting before that, and schedules without an
// engine.
#include <ATen/ops/full.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/name_pattern.h"
#include "comm/connect/rendezvous.h"
#include "comm/meeting/environment.h"
#include "config/check.h"
#include "config/config.h"
#include "engine/hidden_size.h"
#include "optim/schedule.h"
#include "python/src/engine_binding.h"
#include "python/src/given.h"
#include "tensor_parallel/plan.h"

namespace zerorun::python {

namespace py = pybind11;

std::optional<MeshSizes> sizes_of(const Given& given) {
  if (!given.mesh) return std::nullopt;
  const auto [data, tensor, pipeline, replicate] = *given.mesh;
  return MeshSizes{.data = data, .tensor = tensor, .pipeline = pipeline, .replicate = replicate};
}

TensorPlan tensor_plan_of(const Given& given) {
  TensorPlan plan;
  for (const auto& [pattern, word, unit, blocks, transposed] : given.tensor_plan) {
    plan.push_back({.pattern = pattern,
                    .style = parse_tensor_style(word),
                    .cut = {.unit = unit, .blocks = blocks, .transposed = transposed}});
  }
  return plan;
}

void complete(const Given& given, Config& config) {
  const bool is_python = given.python_optimizer != nullptr;
  if (!given.optimizer.empty() || is_python) {
    if (config.optimizer) {
      throw UserError(
          "both the config and the program name an optimizer: remove the config's \"optimizer\" block or do "
          "not pass one to initialize()");
    }
    if (!is_python)
      config.optimizer = parse_config(given.optimizer, "the optimizer passed to initialize()", 1).optimizer;
  }
  if (config.precision.fp32_buffers) return;
  config.precision.fp32_buffers = given.fp32_buffers;
  if (config.precision.training == Dtype::fp16)
    config.precision.fp32_buffers->insert(config.precision.fp32_buffers->end(),
                                          given.fp32_buffers_under_fp16.begin(),
                                          given.fp32_buffers_under_fp16.end());
}

namespace {

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
  complete(given, config);
  computes_only =
      !given.python_optimizer && (!config.optimizer || (given.optimizer.empty() && !requires_grad(model)));
  if (computes_only && given.has_schedule) {
    throw UserError(
        "lr_scheduler without an optimizer: add an \"optimizer\" block to the config or pass one to "
        "initialize()");
  }
  if (config.scheduler && given.has_schedule) {
    throw UserError(
        "both the config and the program name a schedule: remove the config's \"scheduler\" block or do not "
        "pass lr_scheduler to initialize()");
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
  options.attention_heads = given.attention_heads;
  options.mesh = sizes_of(given);
  options.tensor_plan = tensor_plan_of(given);
  options.pipeline = std::move(given.pipeline);
  options.marks_gradients = true;
  options.output_folder = given.output_folder;
  options.optimizer = given.python_optimizer.get();
  if (!options.optimizer && !options.computes_only) options.parameter_groups = std::move(given.groups);
  const auto events = std::make_shared<EventQueue>();
  if (config.monitoring.wandb.enabled || config.monitoring.comet.enabled)
    options.event_sink = [events](const MonitorEvent& event) { events->add(event); };
  Engine engine = initialize(std::move(model), config, options);
  return std::unique_ptr<CoreEngine, WithoutGil>(
      new CoreEngine(std::move(engine), mode, options.computes_only, given.python_optimizer, events));
}

bool allows_untested(const std::string& config, const std::string& origin) {
  return config::check_config(config, origin)
      .settings.get<bool>("zero_allow_untested_optimizer")
      .value_or(false);
}

// How many tensor ranks the config names, 1 if none.
int tensor_ranks(const std::string& config, const std::string& origin) {
  return config::named_ranks(config::check_config(config, origin).settings).tensor.value_or(1);
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

void bind_starting(py::module_& module) {
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
      .def_readwrite("mesh", &Given::mesh)
      .def_readwrite("tensor_plan", &Given::tensor_plan)
      .def_readwrite("fp32_buffers", &Given::fp32_buffers)
      .def_readwrite("fp32_buffers_under_fp16", &Given::fp32_buffers_under_fp16)
      .def_readwrite("attention_heads", &Given::attention_heads)
      .def_readwrite("pipeline", &Given::pipeline);
  module.def("start", &start, NoGil());
  module.def("allows_untested", &allows_untested);
  module.def("matches_name",
             [](const std::string& pattern, const std::string& name) { return matches_name(pattern, name); });
  module.def("tensor_ranks", &tensor_ranks);
  module.def("check_tensor_style", [](const std::string& word) { parse_tensor_style(word); });
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
