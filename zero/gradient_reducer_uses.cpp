// The part of GradientReducer that follows the uses of parameters that come and go: [Note: order of gathers
// and reductions] in zero/gradient_reducer.h.
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "zero/gradient_reducer.h"

namespace zerorun {

// A backward through a model whose parameters are all frozen at the moment (a discriminator's, while the
// generator trains) is none of this engine's.
GradientReducer::Context GradientReducer::context() const {
  if (torch::autograd::get_current_graph_task_id() < 0) return Context::outside;
  const bool trains = std::ranges::any_of(
      buckets_->trained(), [](const NamedParameter& parameter) { return parameter.tensor.requires_grad(); });
  if (!trains) return Context::outside;
  const auto* parts = torch::autograd::get_current_graph_task_exec_info();
  return parts && parts->empty() ? Context::backward : Context::other_task;
}

void GradientReducer::before_gathers() {
  if (!follows_uses_) return;
  const c10::NoGradGuard no_grad;
  const std::lock_guard lock(hooks_);
  const bool is_outside = context() == Context::outside;
  const bool has_thrown = is_abandoned_ || (is_outside && in_backward_ && is_observed_);
  if (has_thrown) start_remaining_reductions();
  if (is_outside) schedule_.leave_backward();
}

void GradientReducer::gathered(std::span<const int> buckets) {
  if (!follows_uses_ || context() != Context::backward) return;
  if (!options_.policy.reduce_every_backward && !reducing_) return;
  const c10::NoGradGuard no_grad;
  const std::lock_guard lock(hooks_);
  schedule_.note_use(buckets);
  if (schedule_.counts_here()) start_complete_everywhere();
}

// A collective, except that no rank takes part once all reductions have started. A rank also takes part if
// its backward has no gradient yet, and so has not begun.
void GradientReducer::start_complete_everywhere() {
  if (in_backward_ && std::ranges::all_of(states_, &BucketState::reduction_started)) return;
  int64_t* ranks = complete_counts_.mutable_data_ptr<int64_t>();
  for (int bucket = 0; bucket < buckets_->trained_count(); ++bucket) {
    ranks[bucket] = in_backward_ && !states_[bucket].reduction_started && plan_.is_complete(bucket);
  }
  communicator_->all_reduce(complete_counts_, "which gradients are complete")->wait();
  for (const int bucket : plan_.order()) {
    if (ranks[bucket] == communicator_->world_size()) start_reduction(bucket);
  }
}

}  // namespace zerorun
