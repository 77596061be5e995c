// One optimizer step: the norm of the gradients, the update, and the reaction to the step's outcome.
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/activity_board.h"
#include "base/error.h"
#include "base/log.h"
#include "base/program.h"
#include "base/timeline.h"
#include "device/dtypes.h"
#include "device/step_facts.h"
#include "engine/engine_state.h"
#include "engine/run_log.h"
#include "engine/step_hashes.h"
#include "engine/tensor_checks.h"

namespace zerorun {

void EngineState::step() {
  const ActivityScope activity(Activity::step);
  check_outside_backward("engine.step");
  check_has_parameters("engine.step");
  finish_open_step();
  held.follow_failed_backward("engine.step");
  held.follow_marks("engine.step");
  check_before_step("engine.step");
  optimizer->follow_program();
  follow_schedule();
  if (residency) residency->finish_iteration();
  const bool updates = progress.step_updates();
  const int64_t backwards = held.backwards();
  held.end_micro_step();
  outcome.set_not_applied();
  if (!updates) return progress.end_micro_step();

  const TimelineBusy busy;
  std::optional<TimelineSpan> span(std::in_place, TimelineName::optimizer_step);
  progress.end_window();
  flops.end();
  const int64_t samples = begin_step_events(backwards);
  measure();
  const bool outcome_is_known = waits_for_facts();
  if (outcome_is_known) outcome.await_facts();
  if (hashes) hashes->begin_step(averaging.after * loss_scale());
  progress.start_update();
  if (outcome.applied() && optimizer->has_directions()) {
    make_directions();
    outcome.await_facts();
  }
  if (outcome_is_known) outcome.ask_for_name();
  if (!outcome_is_known || outcome.applied()) update();
  if (hashes) hashes->share_step();
  progress.end_update(samples);
  memory.end_step(progress.counts().global, bytes_by_use());
  held.end_window();
  flops.begin(progress.counts().global);
  spend_recomputation_budget();
  open_step = !outcome_is_known;
  if (outcome_is_known) {
    apply_outcome();
    follow_schedule();
  }
  span.reset();
  record_end_of_step();
  held_generations.end_step(*this);
}

void EngineState::measure() {
  {  // if a disk has failed, this rank throws here, before any rank updates
    StepTimer::Scope scope(timer, Phase::update);
    store.finish_generation();
  }
  {
    StepTimer::Scope scope(timer, Phase::reduction);
    WindowNotice notice = held.notice();
    notice.stop = termination_requested();
    const WindowNotices notices = reducer.finish_window(notice);
    held.forget_drops();
    should_stop = notices.stops > 0 || should_stop;
    if (!notices.same_drops) {
      held.discard();
      throw UserError(
          "engine.step(): some ranks have dropped gradients since the last optimizer step, and others have "
          "not, or at other micro-steps: all ranks must call zero_grad() (or set grad() to None) at the same "
          "micro-steps. The gradients are dropped on all ranks now");
    }
  }
  StepTimer::Scope scope(timer, Phase::norm);
  monitor->share_step();
  if (mesh.has_replicas()) sum_over_replicas();
  sum_over_groups();
  if (has_tensor_plan && !gradients_compared) gradients_compared = check_whole_gradients(*this);
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    outcome.add(bucket, store.at(bucket, kGradient).own);
  }
  outcome.all_reduce({.scale = averaging.after * loss_scale(), .clipping = config.gradient_clipping});
}

// In the dtype of collectives, as ranks without replicas sum; gradients that were accumulated or written by
// the program may not fit into it, and are sent as they are. A few all-reduces are in flight, so that the
// next one is sent while the last one is copied back.
void EngineState::sum_over_replicas() {
  constexpr size_t kInFlight = 4;
  struct Sum {
    at::Tensor own;
    at::Tensor sent;
    std::unique_ptr<Work> work;
  };
  std::deque<Sum> sums;
  const auto finish_oldest = [&] {
    sums.front().work->wait();
    if (!sums.front().sent.is_same(sums.front().own)) sums.front().own.copy_(sums.front().sent);
    sums.pop_front();
  };
  const bool accumulates =
      config.batch.gradient_accumulation_steps > 1 || !config.managed_gradient_accumulation;
  const bool as_they_are = (accumulates && reducer.reduces_every_backward()) || wrote_gradient;
  const at::ScalarType communication = scalar_type(config.precision.communication);
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    if (sums.size() == kInFlight) finish_oldest();
    const at::Tensor& own = store.at(bucket, kGradient).own;
    const bool casts =
        !as_they_are && static_cast<int64_t>(at::elementSize(communication)) < own.element_size();
    const at::Tensor sent = casts ? own.to(communication) : own;
    sums.push_back({own, sent, mesh.replicas().all_reduce(sent, "gradients of " + buckets.label(bucket))});
  }
  while (!sums.empty()) finish_oldest();
  wrote_gradient = false;
}

void EngineState::sum_over_groups() {
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    const BucketLayout& layout = store.layout(bucket);
    if (layout.share == Share::summed) sum_over(mesh.along(MeshAxis::tensor), bucket);
    const auto& tied = buckets.parameters()[layout.parameters.front()].tied;
    if (tied) sum_over(*tied, bucket);
  }
}

void EngineState::sum_over(Communicator& ranks, int bucket) {
  const StateTensor& gradient = store.at(bucket, kGradient);
  const at::Tensor& own = policy.replicate_update ? gradient.memory : gradient.own;
  // In the dtype of collectives at every stage, so that all stages have the same bits.
  const at::Tensor sent = own.to(scalar_type(config.precision.communication));
  const std::string& name = buckets.parameters()[store.layout(bucket).parameters.front()].name;
  ranks.all_reduce(sent, "gradients of the bucket of " + name)->wait();
  if (!sent.is_same(own)) own.copy_(sent);
}

void EngineState::make_directions() {
  StepTimer::Scope scope(timer, Phase::update);
  checkpoints.keep_all();
  const std::span<const at::Tensor> directions = optimizer->make_directions(averaging.after * loss_scale());
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) outcome.add(bucket, directions[bucket]);
  outcome.all_reduce({.scale = 1, .clipping = config.gradient_clipping});
}

// On a device with streams the kernels of the update read the facts and change nothing if the step is to be
// skipped, so the host usually need not wait. But the loss scale of the next backward, an update on the host
// and some optimizers need the outcome at once.
bool EngineState::waits_for_facts() const {
  return scaler || host_update || optimizer->reads_facts() || !mesh.data().device().streams().asynchronous();
}

void EngineState::update() {
  StepTimer::Scope scope(timer, Phase::update);
  checkpoints.keep_all();
  // With updates on the host, the rest of this function runs on the copy stream, which sends new values to
  // the GPU. So earlier uses, later gathers, and saves of the values are ordered with that copy.
  Streams& streams = mesh.data().device().streams();
  const StreamId program = streams.current();
  std::optional<StreamScope> copies;
  if (host_update) copies.emplace(streams, Lane::copy);
  if (residency) {
    for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) residency->start_update(bucket);
  }
  buckets.masters().follow_writes();
  if (hashes && hashes->is_before_start())
    monitor->run_log()->write_start(progress.counts().global, hashes->share_start());
  const bool gathers = !policy.replicate_update && mesh.shards().world_size() > 1;
  shard_states.start_update();
  optimizer->step(outcome.facts(host_update || optimizer->reads_facts()), [&](int shard) {
    const std::optional<int> bucket = shard_states.note_updated(shard);
    if (!bucket) return;
    if (host_update) host_update->send_to_gpu(*bucket);
    if (residency) residency->finish_update(*bucket, gathers);
  });
  shard_states.finish_update();
  // Raw access needs the new values. If no gather waits for their copy to the GPU, the program's stream must
  // wait.
  if (host_update && !gathers) host_update->hand_over_to(program);
  buckets.bump_versions();
}

void EngineState::apply_outcome() {
  monitor->end_step(outcome.norm(), step_record());
  if (outcome.applied()) {
    schedule.note_applied();
  } else {
    progress.note_skipped();
  }
  follow_loss_scale();
  report_step();
}

void EngineState::finish_open_step() {
  if (!open_step) return;
  outcome.await_facts();
  open_step = false;
  if (!outcome.applied()) optimizer->set_steps(optimizer->steps() - 1);
  apply_outcome();
}

void EngineState::follow_loss_scale() {
  const double before = loss_scale();
  const bool goes_on = !scaler || scaler->update(!outcome.applied());
  if (outcome.applied()) return;
  const std::string what =
      "step " + std::to_string(progress.counts().global) + " skipped: " + outcome.not_finite();
  if (!goes_on) {
    throw TrainingError(what + ", and the loss scale is at its minimum, fp16.min_loss_scale " +
                        c10::str(before) +
                        ": if it is this parameter's gradient again and again, look for what makes it so "
                        "large (by now the parameters themselves may be infinite); a lower learning rate or "
                        "bf16 may help");
  }
  if (mesh.world().rank() != 0) return;
  std::string rest = "; parameters, optimizer and schedule stay as they were (" +
                     std::to_string(progress.counts().skipped) + " skipped so far)";
  if (scaler && scaler->scale() != before) {
    rest += c10::str(", the loss scale goes from ", before, " to ", scaler->scale());
  } else if (scaler) {
    rest += c10::str(", the loss scale stays at ", before);
  }
  log_warning(what + rest);
}

}  // namespace zerorun
