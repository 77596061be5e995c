#include "plan/rank_plan.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <array>
#include <exception>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log_pause.h"
#include "engine/options.h"
#include "plan/meta_memory.h"
#include "plan/model_on_meta.h"

namespace zerorun {
namespace {

constexpr std::array kCategories = {
    &BytesByCategory::parameters, &BytesByCategory::gradients, &BytesByCategory::master,
    &BytesByCategory::moments,    &BytesByCategory::buckets,   &BytesByCategory::buffers,
    &BytesByCategory::gathered,   &BytesByCategory::on_host,   &BytesByCategory::in_files};

// Two micro-steps show all that more of them do. Nothing is written to the run's own files.
Config shortened(Config config) {
  config.monitoring = {};
  BatchConfig& batch = config.batch;
  const int64_t steps = std::min<int64_t>(batch.gradient_accumulation_steps, 2);
  batch.train_batch_size = batch.train_batch_size / batch.gradient_accumulation_steps * steps;
  batch.gradient_accumulation_steps = steps;
  return config;
}

// A loss that needs each parameter once in forward and, but for the first one, once in backward: a model's
// first layer has an input that needs no gradient.
at::Tensor imagined_loss(const Model& model) {
  at::Tensor value = at::ones({}, at::dtype(at::kFloat).device(at::kMeta));
  std::set<const void*> seen;
  for (const auto& [name, parameter] : model.parameters) {
    const bool is_new = seen.insert(parameter.unsafeGetTensorImpl()).second;  // else it is tied
    if (is_new) value = (parameter * value).sum();
  }
  return value;
}

double bytes_of_messages(const Communicator& ranks) {
  return dynamic_cast<const ImaginedCommunicator&>(ranks).bytes_of_messages();
}

// Replicas sum gradients by all-reduces. Otherwise these carry only the few numbers of the norm. Messages
// among data ranks have gradients in 8 bits.
SentPerStep sent_so_far(const ImaginedCommunicator& communicator, const Mesh& mesh) {
  SentPerStep sent{.gathered_elements = communicator.elements_sent(Collective::all_gather),
                   .gathered_bytes = communicator.bytes_sent(Collective::all_gather),
                   .reduced_elements = communicator.elements_sent(Collective::reduce_scatter),
                   .reduced_bytes = communicator.bytes_sent(Collective::reduce_scatter)};
  sent.reduced_elements += bytes_of_messages(mesh.shards());
  sent.reduced_bytes += bytes_of_messages(mesh.shards());
  if (mesh.sizes().pipeline > 1) sent.passed_bytes = bytes_of_messages(mesh.along(MeshAxis::pipeline));
  if (mesh.has_replicas()) {
    sent.reduced_elements += communicator.elements_sent(Collective::all_reduce);
    sent.reduced_bytes += communicator.bytes_sent(Collective::all_reduce);
  }
  sent.between_hosts = communicator.bytes_between_hosts();
  sent.between_hosts_on_levels = communicator.bytes_between_hosts_on_levels();
  return sent;
}

// Adds `times` the difference of two counts.
void add(SentPerStep& sum, const SentPerStep& after, const SentPerStep& before, double times) {
  for (const auto count :
       {&SentPerStep::gathered_elements, &SentPerStep::gathered_bytes, &SentPerStep::reduced_elements,
        &SentPerStep::reduced_bytes, &SentPerStep::passed_bytes, &SentPerStep::between_hosts,
        &SentPerStep::between_hosts_on_levels})
    sum.*count += times * (after.*count - before.*count);
}

// What an exception says, without LibTorch's stack of calls and advice.
std::string message_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch ? of_torch->what_without_backtrace() : error.what();
  const std::string first = text.substr(0, text.find('\n'));
  return of_torch ? first.substr(0, first.find(". ")) : first;
}

// The forward and the backward of one micro-step.
void run_micro_step(const PlannedTraining& training, Engine& engine, RankPlan& plan) {
  const MetaMemory memory;
  if (!training.forward) {
    engine.backward(imagined_loss(training.model));
    plan.transfers = std::max(plan.transfers, memory.peak_of_transfers());
    return;
  }
  try {
    engine.backward(training.forward(engine));
    plan.activations = std::max(plan.activations.value_or(0), memory.peak());
  } catch (const std::exception& error) {
    throw ForwardFailed(message_of(error));
  }
}

InitializeOptions options_of(const PlannedTraining& training, std::shared_ptr<Communicator> communicator,
                             bool has_stages) {
  const InitializeOptions& given = training.options;
  if (given.optimizer || given.schedule || given.lr_scheduler) {
    throw UserError(
        "a plan knows no optimizer or schedule of the program's own: name the optimizer and the scheduler in "
        "the config");
  }
  if (has_stages && !(given.pipeline && given.pipeline->example)) {
    throw UserError(
        "the mesh has pipeline stages (zerorun.mesh, pipeline.stages), and nothing says how they divide the "
        "model: run the program's own plan with InitializeOptions::pipeline and its `example`, or plan one "
        "stage's ranks with its own parameters and no stages");
  }
  InitializeOptions options = given;
  options.communicator = std::move(communicator);
  options.output_folder.clear();
  options.event_sink = nullptr;
  if (!has_stages) options.pipeline.reset();
  if (options.pipeline) options.pipeline->example.reset();
  return options;
}

Tensors on_meta(Tensors tensors) {
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = at::empty_like(tensor, tensor.options().device(c10::kMeta));
  }
  return tensors;
}

// A rank whose gradients are reduced by backward() and step().
void run_micro_steps(const PlannedTraining& training, const Config& config,
                     const ImaginedCommunicator& communicator, Engine& engine, RankPlan& plan) {
  const int64_t steps = engine.config().batch.gradient_accumulation_steps;
  for (int64_t step = 0; step < steps; ++step) {
    const SentPerStep before = sent_so_far(communicator, engine.mesh());
    run_micro_step(training, engine, plan);
    note_peak(plan.peak, engine);
    engine.step();
    note_peak(plan.peak, engine);
    const bool is_last = step + 1 == steps;
    const int64_t times = is_last ? 1 : config.batch.gradient_accumulation_steps - 1;
    add(plan.sent, sent_so_far(communicator, engine.mesh()), before, static_cast<double>(times));
  }
}

// A rank of a pipeline stage. It has at most as many micro-batches in flight as there are stages, and sends
// as much more with each further one.
void run_windows(const PlannedTraining& training, const Config& config,
                 const ImaginedCommunicator& communicator, Engine& engine, RankPlan& plan) {
  const MicroBatch& example = *training.options.pipeline->example;
  const MicroBatch batch{.inputs = on_meta(example.inputs), .labels = on_meta(example.labels)};
  const auto run = [&](int64_t count) {
    const std::vector<MicroBatch> window(static_cast<size_t>(count), batch);
    const SentPerStep before = sent_so_far(communicator, engine.mesh());
    try {
      const MetaMemory memory;
      engine.train_batch(window);
      plan.activations = std::max(plan.activations.value_or(0), memory.peak());
    } catch (const std::exception& error) {
      throw UserError("the pipeline's layers cannot run without values: " + message_of(error));
    }
    note_peak(plan.peak, engine);
    SentPerStep sent;
    add(sent, sent_so_far(communicator, engine.mesh()), before, 1);
    return sent;
  };
  const int64_t all = config.batch.gradient_accumulation_steps;
  const int64_t count = std::min<int64_t>(all, 2 * engine.mesh().sizes().pipeline);
  const SentPerStep sent = run(count);
  add(plan.sent, sent, {}, 1);
  if (count < all) add(plan.sent, sent, run(count - 1), static_cast<double>(all - count));
}

}  // namespace

int64_t RankPlan::memory() const {
  return peak.model_states() + peak.buckets + peak.buffers + peak.gathered + transfers +
         activations.value_or(0);
}

void note_peak(BytesByCategory& peak, const Engine& engine) {
  const BytesByCategory now = engine.bytes_by_category();
  for (const auto category : kCategories) peak.*category = std::max(peak.*category, now.*category);
  peak.gathered = std::max(peak.gathered, engine.residency().peak_resident_bytes);
}

RankPlan plan_rank(const PlannedTraining& training, const Config& config, const ImaginedRanks& ranks) {
  const LogPause silence;
  const ModelOnMeta lent(training.model);
  const std::unique_ptr<Device> device = make_imagined_device(ranks.on_gpu);
  const auto communicator = std::make_shared<ImaginedCommunicator>(ranks, *device);
  const Config used = shortened(config);
  RankPlan plan;
  const bool has_stages = config.mesh && config.mesh->pipeline > 1;
  Engine engine = initialize(training.model, used, options_of(training, communicator, has_stages));
  note_peak(plan.peak, engine);
  const int64_t states = plan.peak.in_files;
  for (int window = 0; window < 2; ++window) {  // the second one follows the plan that the first one makes
    plan.sent = {};
    (has_stages ? run_windows : run_micro_steps)(training, config, *communicator, engine, plan);
  }
  // Of two generations of states a step writes one. The inputs of recomputed blocks are in the file for as
  // many micro-batches as are between their forward and their backward.
  const int64_t micro_batches = config.batch.gradient_accumulation_steps;
  const int64_t later_stages = engine.mesh().sizes().pipeline - engine.mesh().coordinates().pipeline;
  const int64_t inputs = (plan.peak.in_files - states) / std::min(later_stages, micro_batches);
  plan.file_bytes_per_step = states / 2 + inputs * micro_batches;
  return plan;
}

}  // namespace zerorun
