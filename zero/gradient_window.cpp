// A window of gradients that a checkpoint interrupts.
#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/error.h"
#include "zero/gradient_reducer.h"

namespace zerorun {

WindowSoFar GradientReducer::window_so_far() {
  finish_reduction();
  for (BucketState& state : states_)
    state.writers.hand_over(*streams_, streams_->current(), Handover::written);
  const bool elsewhere = std::ranges::any_of(states_, [&](const BucketState& state) {
    return state.late.defined() || (state.sums.defined() && !reduced_in_sums());
  });
  if (elsewhere) {
    throw UserError(
        "the gradients of a window with several backwards and gradient_accumulation_steps 1, or with "
        "gradients "
        "that came late, cannot be saved: save behind the step() that ends it");
  }
  WindowSoFar window{.has_gradient = written_, .arrivals = window_arrivals_, .tally = {}};
  if (reduces_every_backward()) {
    for (size_t parameter = 0; parameter < written_.size(); ++parameter)
      window.has_gradient[parameter] = states_[buckets_->bucket_of(static_cast<int>(parameter))].has_sums;
  }
  const at::Tensor tally = tally_.cpu();
  window.tally.assign(tally.const_data_ptr<uint8_t>(), tally.const_data_ptr<uint8_t>() + tally.numel());
  return window;
}

void GradientReducer::resume_window(const WindowSoFar& window) {
  window_arrivals_ = window.arrivals;
  const at::Tensor tally = at::empty({static_cast<int64_t>(window.tally.size())}, at::kByte);
  ZR_CHECK(tally.numel() == tally_.numel(), "another tally");
  std::ranges::copy(window.tally, tally.mutable_data_ptr<uint8_t>());
  tally_.copy_(tally);
  for (size_t parameter = 0; parameter < written_.size(); ++parameter) {
    if (!window.has_gradient[parameter]) continue;
    if (reduces_every_backward()) {
      states_[buckets_->bucket_of(static_cast<int>(parameter))].has_sums = true;
    } else {
      written_[parameter] = 1;
    }
  }
}

}  // namespace zerorun
