// Training with a model that is divided among pipeline stages: a window of micro-batches is one call.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/activity_board.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/agreement.h"
#include "device/dtypes.h"
#include "engine/engine_state.h"
#include "engine/pipeline_division.h"
#include "engine/tensor_checks.h"

namespace zerorun {
namespace {

std::string mebibytes(double bytes) {
  return std::to_string(static_cast<int64_t>(bytes / (1 << 20) + 0.5)) + " MiB";
}

// What the config's pipeline.reduce costs and saves on this stage.
std::string describe_reduction(const EngineState& state) {
  double elements = 0;
  for (int bucket = 0; bucket < state.buckets.trained_count(); ++bucket)
    elements += static_cast<double>(state.store.layout(bucket).numel);
  const double ranks = state.mesh.data().world_size();
  const auto micro_batches = static_cast<double>(state.config.batch.gradient_accumulation_steps);
  const double kept = elements * static_cast<double>(size_of(state.reducer.gradient_dtype()));
  const double sent =
      elements * (ranks - 1) / ranks * static_cast<double>(size_of(state.config.precision.communication));
  const bool by_window = state.config.pipeline.reduces_by_window;
  return std::string("gradients are reduced ") +
         (by_window ? "at the end of a window" : "after each micro-batch") +
         " (pipeline.reduce): " + mebibytes(by_window ? kept : kept / ranks) +
         " of gradients on a rank of this stage, " + mebibytes(by_window ? sent : sent * micro_batches) +
         " sent in a window; \"" + (by_window ? "micro_batch" : "window") + "\" would keep " +
         mebibytes(by_window ? kept / ranks : kept) + " and send " +
         mebibytes(by_window ? sent * micro_batches : sent);
}

}  // namespace

void EngineState::start_pipeline(DividedModel divided, WholeModel whole_model,
                                 const InitializeOptions& options) {
  whole = std::move(whole_model);
  if (mesh.world().rank() == 0) {
    log_info("pipeline stages: " + divided.words);
    const bool chooses = policy_of(config.zero.stage).reduce_every_backward;
    if (chooses && config.batch.gradient_accumulation_steps > 1 && mesh.data().world_size() > 1)
      log_info(describe_reduction(*this));
  }
  stage = std::make_unique<PipelineStage>(std::move(divided.layers), std::move(divided.behind),
                                          options.pipeline->loss, mesh.along(MeshAxis::pipeline),
                                          ForwardOptions{.recomputation = recomputation,
                                                         .recomputed_group = config.pipeline.recomputed_group,
                                                         .autocast = [this] { return autocast_state(); }});
}

void EngineState::check_not_divided(const std::string& call) const {
  if (!stage || mesh.sizes().pipeline == 1) return;
  throw UserError(call +
                  "() with a model that is divided among pipeline stages: call engine.train_batch(), which "
                  "runs all forwards and backwards of an optimizer step");
}

void EngineState::check_not_tied(int parameter, const std::string& call) const {
  const NamedParameter& given = buckets.parameters()[parameter];
  if (!given.tied) return;
  throw UserError(call + " would change parameter " + given.name +
                  " on this pipeline stage only, and other stages have it too: change it before "
                  "initialize(), or in a checkpoint");
}

std::string EngineState::why_unknown() const {
  return stage && mesh.sizes().pipeline > 1
             ? "; if it is one, it is of another pipeline stage, whose ranks have it"
             : "";
}

void EngineState::check_windows_work(const std::string& call) const {
  if (pipeline_failure.empty()) return;
  throw UserError(
      call +
      "() after a window of the pipeline that failed, in which other ranks stopped elsewhere: end "
      "the run (" +
      pipeline_failure + ")");
}

namespace {

// Throws UserError if no window may begin now.
void check_before_batch(EngineState& state, const std::string& call, size_t micro_batches) {
  check_outside_backward(call);
  state.check_has_parameters(call);
  if (!state.stage) {
    throw UserError(call +
                    "() of an engine without a list of layers: set InitializeOptions::pipeline (Python: "
                    "PipelineModule), or call engine.backward() and engine.step()");
  }
  state.held.follow_failed_backward(call);
  state.held.follow_marks(call);
  state.check_not_failed(call);
  if (micro_batches == 0)
    throw UserError(call + "() without micro-batches: give gradient_accumulation_steps of them");
  if (state.progress.in_no_sync())
    throw UserError(call + "() inside a no_sync() scope, which it cannot follow: end the scope first");
  if (state.held.backwards() > 0 || state.progress.counts().micro > 0)
    throw UserError(call + "() between backward() and step(): call it after step()");
}

// Runs `check` on all ranks, of which each gives as many micro-batches. If it throws on any rank, all ranks
// throw its error, so that none begins a window in which others do not take part.
template <typename Check>
void agree_on_batch(Communicator& world, const std::string& call, size_t micro_batches, const Check& check) {
  const Failure failure = failure_of(check);
  const std::string label = "the beginning of " + call;
  // Only equal numbers have no variance.
  const at::Tensor sums = at::zeros({3}, at::kLong);
  int64_t* sum = sums.mutable_data_ptr<int64_t>();
  const auto own = static_cast<int64_t>(micro_batches);
  sum[0] = failure ? 1 : 0;
  sum[1] = own;
  sum[2] = own * own;
  world.all_reduce(sums, label)->wait();
  if (sum[0] > 0) raise_first(exchange_texts(failure.encoded(), world, label));
  if (world.world_size() * sum[2] == sum[1] * sum[1]) return;
  const std::vector<std::string> counts = exchange_texts(std::to_string(own), world, label);
  const auto other =
      std::ranges::find_if(counts, [&](const std::string& count) { return count != counts[0]; });
  throw UserError(call + "(): rank 0 gives " + counts[0] + " micro-batches, and rank " +
                  std::to_string(other - counts.begin()) + " gives " + *other +
                  ": give as many on all ranks");
}

// Runs a part of a window that other ranks take part in: this rank cannot go on if it throws.
template <typename Action>
auto run_window(EngineState& state, const std::string& call, const Action& action) try {
  return action();
} catch (const std::exception& error) {
  state.pipeline_failure = error.what();
  state.mesh.world().announce_failure(call + "() failed: " + error.what());
  throw;
}

// All ranks get the mean of the last stage's losses.
at::Tensor mean_loss(const EngineState& state, const at::Tensor& own) {
  const bool counts = state.stage->is_last() && state.mesh.coordinates().tensor == 0;
  at::Tensor loss = (counts ? own / state.mesh.data().world_size() : at::zeros_like(own)).reshape({1});
  state.mesh.world().all_reduce(loss, "the loss of a window")->wait();
  return loss.reshape({});
}

}  // namespace

at::Tensor train_batch(EngineState& state, std::span<const MicroBatch> batches) {
  const ActivityScope activity(Activity::batch);
  const std::string call = "engine.train_batch";
  state.check_windows_work(call);  // other ranks may be gone
  agree_on_batch(state.mesh.world(), call, batches.size(), [&] {
    check_before_batch(state, call, batches.size());
    if (!c10::GradMode::is_enabled())
      throw UserError(call + "() with autograd off (torch::NoGradGuard; Python: torch.no_grad())");
    state.finish_open_step();
    state.follow_schedule();
    state.check_before_backward(call);
    state.check_before_update(call);
  });
  if (!state.model.is_training()) state.model.set_training(true);

  const auto count = static_cast<int64_t>(batches.size());
  return run_window(state, call, [&] {
    state.progress.begin_batch(count);
    if (state.residency) state.residency->set_ends_surely(true);
    const at::Tensor own = state.stage->train(batches, [&](const Tensors& roots, const Tensors& gradients) {
      if (state.held.backwards() > 0) {
        state.held.end_micro_step();
        state.progress.end_micro_step();
      }
      if (roots.empty() || !gradients.empty()) return state.run_backward(roots, gradients);
      check_losses(state, roots.front(), call);
      state.run_backward(roots, {state.seed_of(roots.front(), count)});
    });
    if (state.residency) state.residency->set_ends_surely(false);
    at::Tensor loss = mean_loss(state, own);
    state.monitor->set_loss(loss, own);
    state.step();
    return loss;
  });
}

at::Tensor eval_batch(EngineState& state, std::span<const MicroBatch> batches) {
  const ActivityScope activity(Activity::batch);
  const std::string call = "engine.eval_batch";
  state.check_windows_work(call);
  agree_on_batch(state.mesh.world(), call, batches.size(),
                 [&] { check_before_batch(state, call, batches.size()); });
  const bool was_training = state.model.is_training();
  if (was_training) state.model.set_training(false);
  at::Tensor loss = run_window(state, call, [&] { return mean_loss(state, state.stage->evaluate(batches)); });
  if (was_training) state.model.set_training(true);
  return loss;
}

}  // namespace zerorun
