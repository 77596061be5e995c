// What Python asks of an engine, its config and a checkpoint.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "activations/linear_cross_entropy.h"
#include "base/memory_report.h"
#include "checkpoint/file_system.h"
#include "checkpoint/inventory.h"
#include "checkpoint/saved_state.h"
#include "config/config.h"
#include "engine/saving/checkpoint_contents.h"
#include "python/src/engine_binding.h"

namespace zerorun::python {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;  // NOLINT(google-build-using-namespace): names of arguments

py::dict bytes_of(CoreEngine& core) {
  const BytesByCategory bytes = [&] {
    py::gil_scoped_release no_gil;
    return core.get().bytes_by_category();
  }();
  return py::dict("parameters"_a = bytes.parameters, "gradients"_a = bytes.gradients,
                  "master"_a = bytes.master, "moments"_a = bytes.moments, "buckets"_a = bytes.buckets,
                  "buffers"_a = bytes.buffers, "gathered"_a = bytes.gathered, "on_host"_a = bytes.on_host,
                  "in_files"_a = bytes.in_files);
}

// Where the momentum of the config's schedule begins; nothing if it moves none.
std::optional<PerGroup> highest_momentum(const Config& config) {
  const auto* cycle = config.scheduler ? std::get_if<OneCycle>(&*config.scheduler) : nullptr;
  return cycle && cycle->cycle_momentum ? std::optional(cycle->max_mom) : std::nullopt;
}

at::Tensor linear_cross_entropy_of(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& labels,
                                   const std::optional<at::Tensor>& bias, int64_t ignore_index, bool sums,
                                   int64_t tokens) {
  return linear_cross_entropy(x, weight, labels, bias, {ignore_index, sums, tokens});
}

py::object wandb_of(const WandbConfig& config) {
  if (!config.enabled) return py::none();
  return py::dict("project"_a = config.project, "group"_a = config.group, "entity"_a = config.team);
}

py::object comet_of(const CometConfig& config) {
  if (!config.enabled) return py::none();
  return py::dict("samples_log_interval"_a = config.samples_log_interval, "project"_a = config.project,
                  "workspace"_a = config.workspace, "api_key"_a = config.api_key,
                  "experiment_name"_a = config.experiment_name, "experiment_key"_a = config.experiment_key,
                  "online"_a = config.online, "mode"_a = config.mode);
}

// (tag, value, samples) of each event since the last call.
py::list events_of(CoreEngine& core) {
  py::list events;
  for (const MonitorEvent& event : core.take_events())
    events.append(py::make_tuple(event.tag, event.value, event.samples));
  return events;
}

py::dict config_of(CoreEngine& core) {
  const Config& config = core.get().config();
  const PrecisionConfig& precision = config.precision;
  const PythonConfig& python = config.python;
  return py::dict(
      "train_batch_size"_a = config.batch.train_batch_size,
      "micro_batch_size"_a = config.batch.micro_batch_size_per_gpu,
      "accumulation"_a = config.batch.gradient_accumulation_steps, "stage"_a = config.zero.stage,
      "dtype"_a = std::string(name_of(precision.training)), "autocast"_a = precision.autocast,
      "recompute"_a = recompute_settings(config.recompute),
      "recomputed_group"_a = config.pipeline.recomputed_group,
      "moves_activations"_a =
          config.recompute.partitioned || config.recompute.on_host || config.recompute.contiguous,
      "clipping"_a = config.gradient_clipping,
      "dynamic_loss_scale"_a = precision.training == Dtype::fp16 && !precision.loss_scale.fixed,
      "optimizer"_a = config.optimizer ? std::string(name_of(*config.optimizer)) : std::string(),
      "has_scheduler"_a = config.scheduler.has_value(), "computes_only"_a = core.computes_only(),
      "managed"_a = config.managed_gradient_accumulation, "steps_per_print"_a = config.steps_per_print,
      "disables_gc"_a = python.disable_gc, "gathers_on_save"_a = python.gather_16bit_weights_on_model_save,
      "highest_momentum"_a = highest_momentum(config), "leaf_classes"_a = python.leaf_classes,
      "leaf_names"_a = python.leaf_names, "leaf_suffixes"_a = python.leaf_name_suffixes,
      "wandb"_a = wandb_of(config.monitoring.wandb), "comet"_a = comet_of(config.monitoring.comet),
      "logs_communication"_a = config.monitoring.comms.enabled, "resolved"_a = config.resolved);
}

// A parameter or a buffer in a checkpoint.
struct SavedTensor {
  std::string name;
  std::vector<std::string> aliases;
  bool trained = true;
  bool excluded = false;
  bool is_buffer = false;
};

// All of the checkpoint's, by name. Throws UserError.
std::vector<SavedTensor> saved_tensors(const std::string& folder, const std::string& tag) {
  checkpoint::FileSystem& files = checkpoint::local_file_system();
  const checkpoint::SavedState saved(files, checkpoint::checkpoint_folder(files, folder, tag));
  const checkpoint::Manifest& manifest = saved.manifest();
  std::set<std::string> buffers;
  for (const auto& [name, file] : manifest.files) {
    if (!is_buffers_file(name)) continue;
    for (const checkpoint::StateRange& range : file.ranges) buffers.insert(range.parameter);
  }
  std::vector<SavedTensor> tensors;
  for (const auto& [name, parameter] : manifest.parameters) {
    tensors.push_back(
        {name, parameter.aliases, parameter.trained, parameter.excluded, buffers.contains(name)});
  }
  return tensors;
}

}  // namespace

py::object recompute_settings(const RecomputeConfig& config) {
  if (config.is_implied || (config.every == 0 && config.patterns.empty() && !config.budget))
    return py::none();
  return py::dict("every"_a = config.every, "patterns"_a = config.patterns,
                  "budget"_a = config.budget.has_value(), "nvme_path"_a = config.nvme_path);
}

void bind_facts(EngineClass& engine) {
  engine
      .def(
          "get_lr", [](CoreEngine& core) { return core.get().get_lr(); }, NoGil())
      .def(
          "get_betas", [](CoreEngine& core) { return core.get().get_betas(); }, NoGil())
      .def(
          "grad_norm", [](CoreEngine& core) { return core.get().get_global_grad_norm(); }, NoGil())
      .def(
          "was_step_applied", [](CoreEngine& core) { return core.get().was_step_applied(); }, NoGil())
      .def(
          "skipped_steps", [](CoreEngine& core) { return core.get().skipped_steps(); }, NoGil())
      .def("global_steps", [](CoreEngine& core) { return core.get().global_steps(); })
      .def("backwards", [](CoreEngine& core) { return core.get().backwards(); })
      .def(
          "loss_scale", [](CoreEngine& core) { return core.get().loss_scale(); }, NoGil())
      .def("should_stop", [](CoreEngine& core) { return core.get().should_stop(); })
      .def("device", [](CoreEngine& core) { return core.get().device().str(); })
      .def("rank", [](CoreEngine& core) { return core.get().communicator().rank(); })
      .def("world_size", [](CoreEngine& core) { return core.get().communicator().world_size(); })
      .def("mesh_sizes",  // by axis
           [](CoreEngine& core) {
             const MeshSizes& sizes = core.get().mesh().sizes();
             return py::dict("data"_a = sizes.data, "tensor"_a = sizes.tensor, "pipeline"_a = sizes.pipeline);
           })
      .def("coordinates",  // of this rank, by axis
           [](CoreEngine& core) {
             const MeshCoordinates& own = core.get().mesh().coordinates();
             return py::dict("data"_a = own.data, "tensor"_a = own.tensor, "pipeline"_a = own.pipeline);
           })
      .def("shares_memory", [](CoreEngine& core) { return core.get().communicator().shares_memory(); })
      .def(
          "barrier",
          [](CoreEngine& core) { core.get().communicator().barrier("a barrier of the program")->wait(); },
          NoGil())
      .def("bytes", &bytes_of)
      .def("config", &config_of)
      .def("take_events", &events_of)
      .def(
          "log", [](CoreEngine& core, const std::string& tag, double value) { core.get().log(tag, value); },
          NoGil())
      .def("set_tokens_per_step",
           [](CoreEngine& core, int64_t tokens) { core.get().set_tokens_per_step(tokens); })
      .def("set_global_samples",
           [](CoreEngine& core, int64_t samples) { core.get().set_global_samples(samples); })
      .def("log_communication", [](CoreEngine& core) { return core.get().log_communication(); })
      .def(
          "gathers", [](CoreEngine& core) { return core.get().residency().gathers; }, NoGil())
      .def(
          "has_lost_ranks",  // a gather has failed, which an operator reports to Python as RuntimeError
          [](CoreEngine& core) { return core.get().residency().lost_ranks; }, NoGil());
}

void bind_checkpoint_facts(py::module_& module) {
  py::class_<SavedTensor>(module, "SavedTensor")
      .def_readonly("name", &SavedTensor::name)
      .def_readonly("aliases", &SavedTensor::aliases)
      .def_readonly("trained", &SavedTensor::trained)
      .def_readonly("excluded", &SavedTensor::excluded)
      .def_readonly("is_buffer", &SavedTensor::is_buffer);
  module.def("linear_cross_entropy", &linear_cross_entropy_of, py::call_guard<py::gil_scoped_release>());
  module.def("memory_report_of", [](const std::string& what) { return memory_report_of(what); });
  module.def("saved_tensors", &saved_tensors, "folder"_a, "tag"_a = "");
}

}  // namespace zerorun::python
