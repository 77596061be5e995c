#include "plan/rank_plan.h"

#include <ATen/ops/ones.h>

#include <algorithm>
#include <array>
#include <exception>
#include <set>
#include <string>
#include <utility>

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

// Replicas sum gradients by all-reduces. Otherwise these carry only the few numbers of the norm. Messages
// have gradients in 8 bits.
SentPerStep sent_so_far(const ImaginedCommunicator& communicator, bool has_replicas) {
  SentPerStep sent{.gathered_elements = communicator.elements_sent(Collective::all_gather),
                   .gathered_bytes = communicator.bytes_sent(Collective::all_gather),
                   .reduced_elements = communicator.elements_sent(Collective::reduce_scatter),
                   .reduced_bytes = communicator.bytes_sent(Collective::reduce_scatter)};
  sent.reduced_elements += communicator.bytes_of_messages();
  sent.reduced_bytes += communicator.bytes_of_messages();
  if (has_replicas) {
    sent.reduced_elements += communicator.elements_sent(Collective::all_reduce);
    sent.reduced_bytes += communicator.bytes_sent(Collective::all_reduce);
  }
  return sent;
}

// Adds `times` the difference of two counts.
void add(SentPerStep& sum, const SentPerStep& after, const SentPerStep& before, int64_t times) {
  for (const auto count : {&SentPerStep::gathered_elements, &SentPerStep::gathered_bytes,
                           &SentPerStep::reduced_elements, &SentPerStep::reduced_bytes})
    sum.*count += static_cast<double>(times) * (after.*count - before.*count);
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
  if (!training.forward) return engine.backward(imagined_loss(training.model));
  try {
    const MetaMemory memory;
    engine.backward(training.forward(engine));
    plan.activations = std::max(plan.activations.value_or(0), memory.peak());
  } catch (const std::exception& error) {
    throw ForwardFailed(message_of(error));
  }
}

InitializeOptions options_of(const PlannedTraining& training, std::shared_ptr<Communicator> communicator) {
  const InitializeOptions& given = training.options;
  if (given.optimizer || given.schedule || given.lr_scheduler || given.pipeline) {
    throw UserError(
        "a plan knows no optimizer, schedule or pipeline of the program's own: name the optimizer and the "
        "scheduler in the config, and plan the layers of one pipeline stage as a model of their own");
  }
  InitializeOptions options = given;
  options.communicator = std::move(communicator);
  options.output_folder.clear();
  options.event_sink = nullptr;
  return options;
}

}  // namespace

int64_t RankPlan::memory() const {
  return peak.model_states() + peak.buckets + peak.buffers + peak.gathered + activations.value_or(0);
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
  Engine engine = initialize(training.model, used, options_of(training, communicator));
  note_peak(plan.peak, engine);
  const bool has_replicas = engine.mesh().has_replicas();
  for (int window = 0; window < 2; ++window) {  // the second one follows the plan that the first one makes
    plan.sent = {};
    const int64_t steps = used.batch.gradient_accumulation_steps;
    for (int64_t step = 0; step < steps; ++step) {
      const SentPerStep before = sent_so_far(*communicator, has_replicas);
      run_micro_step(training, engine, plan);
      note_peak(plan.peak, engine);
      engine.step();
      note_peak(plan.peak, engine);
      const bool is_last = step + 1 == steps;
      const int64_t times = is_last ? 1 : config.batch.gradient_accumulation_steps - 1;
      add(plan.sent, sent_so_far(*communicator, has_replicas), before, times);
    }
  }
  plan.file_bytes_per_step = engine.bytes_by_category().in_files / 2;  // of two generations a step writes one
  return plan;
}

}  // namespace zerorun
