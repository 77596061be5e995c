// The part of GradientReducer that ends and starts windows (the micro-steps between two optimizer steps), and
// that saves and resumes an unfinished window for checkpoints.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "zero/gradient_reducer.h"

namespace zerorun {

void GradientReducer::check_window_is_stored() const {
  const bool elsewhere = std::ranges::any_of(states_, [&](const BucketState& state) {
    return state.late.memory.defined() || (state.sums.defined() && !reduced_in_sums()) ||
           (state.reduction_started && !reduces_every_backward());
  });
  if (!elsewhere) return;
  throw UserError(
      "the gradients of a window with several backwards and gradient_accumulation_steps 1, with gradients "
      "that came late, or with gradients that are reduced already (after a backward that was declared the "
      "last, or read_gradient()) cannot be saved: save after the step() that ends it");
}

WindowSoFar GradientReducer::window_so_far() {
  finish_reduction();
  for (BucketState& state : states_)
    state.writers.hand_over(*streams_, streams_->current(), Handover::written);
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

void GradientReducer::finish_reduction() {
  while (!pending_.empty()) retire_oldest();
  streams_->record(reduced_, streams_->of(Lane::reduce));
  streams_->wait(reduced_, streams_->current(), Handover::reduced);
}

WindowNotices GradientReducer::finish_window(const WindowNotice& own) {
  if (!follows_uses_) {
    finish_plan();  // starts all reductions, if no backward of the window was at the boundary
  } else {
    for (const int bucket : plan_.order()) {
      if (!states_[bucket].has_sums) start_reduction(bucket);  // the window had no backward
    }
  }
  int64_t* late = late_counts_.mutable_data_ptr<int64_t>();
  for (size_t bucket = 0; bucket < states_.size(); ++bucket)
    late[bucket] = states_[bucket].late.memory.defined();
  int64_t* notices = late + states_.size();
  notices[0] = own.stop ? 1 : 0;
  notices[1] = own.dropped ? 1 : 0;
  notices[2] = own.dropped_after;
  notices[3] = own.dropped_after * own.dropped_after;
  notices[4] = own.dropped_before;
  notices[5] = own.dropped_before * own.dropped_before;
  // Only a data group has the same buckets; notices concern all ranks.
  const auto buckets = static_cast<int64_t>(states_.size());
  const bool is_alone = options_.world == nullptr;
  auto agreement = communicator_->all_reduce(is_alone ? late_counts_ : late_counts_.narrow(0, 0, buckets),
                                             "who has late gradients");
  std::unique_ptr<Work> told;
  if (!is_alone)
    told = options_.world->all_reduce(late_counts_.narrow(0, buckets, kNotices), "the notices of all ranks");
  finish_reduction();
  agreement->wait();
  if (told) told->wait();
  bool any_late = false;
  for (int bucket = 0; bucket < buckets_->trained_count(); ++bucket) {
    any_late = any_late || late[bucket] > 0;
    if (late[bucket] > 0) reduce_late(bucket);
    on_host_.send(bucket);
  }
  if (!any_late) {
    late_pool_.trim(0);
    if (!pooled()) pool_.trim(0);  // of the last windows with late gradients
  }
  const int64_t ranks = (is_alone ? communicator_ : options_.world)->world_size();
  // Only equal numbers have no variance.
  const auto are_equal = [&](int64_t sum, int64_t squares) { return ranks * squares == sum * sum; };
  const bool same_places = are_equal(notices[2], notices[3]) || are_equal(notices[4], notices[5]);
  // Sums of a backward over ranks may be dropped by all ranks only.
  const bool same_ranks = notices[1] == 0 || notices[1] == ranks || !reduces_every_backward();
  return {.stops = notices[0], .same_drops = notices[1] == 0 || (same_places && same_ranks)};
}

// A collective. Late gradients are rare, so everything runs on the current stream. But a program may have
// some in every window, so the buffers are kept for the next one.
void GradientReducer::reduce_late(int bucket) {
  BucketState& state = states_[bucket];
  CommunicationBuffer sent = pool_.take(store_->layout(bucket).numel);
  const at::Tensor& buffer = sent.memory;
  streams_->wait(sent.free, streams_->current(), Handover::free);
  device_->zero(buffer);
  if (state.late.memory.defined()) {
    state.writers.hand_over(*streams_, streams_->current(), Handover::written);
    state.writers.clear();
    for (int parameter : store_->layout(bucket).parameters) {
      const at::Tensor late = buckets_->piece(parameter, state.late.memory);
      device_->copy_scaled(buckets_->piece(parameter, buffer), late, options_.factor,
                           finite_check(parameter));
    }
    give_back_late(state);
  }
  const std::string label = "late gradients of " + buckets_->label(bucket);
  at::Tensor own = store_->slice_of(bucket, buffer, communicator_->rank());
  reduce_scatter(own, buffer, label)->wait();
  if (options_.policy.replicate_update) communicator_->all_gather(buffer, own, label)->wait();
  start_change(bucket);
  device_->add_scaled(gradient(bucket), options_.policy.replicate_update ? buffer : own, 1);
  streams_->record(sent.free, streams_->current());
  pool_.give_back(std::move(sent));
}

// Call this after the current stream's last use of the bucket's late gradients.
void GradientReducer::give_back_late(BucketState& state) {
  if (!state.late.memory.defined()) return;
  streams_->record(state.late.free, streams_->current());
  late_pool_.give_back(std::exchange(state.late, CommunicationBuffer()));
}

// Without need no reduction starts, because gradients of later backwards would be late.
void GradientReducer::finish_abandoned() {
  abandon_backward();
  leave_abandoned(/*reduces=*/reduces_every_backward() || has_gradients_of_backward_);
}

// Makes no plan, because the backward is incomplete.
void GradientReducer::leave_abandoned(bool reduces) {
  if (reduces && std::exchange(is_abandoned_, false) && reducing_) start_remaining_reductions();
  // In the first gradient's hook of the next backward, whose uses before it are noted already.
  if (context() == Context::outside) schedule_.leave_backward();
  is_observed_ = false;
  finish_reduction();
}

void GradientReducer::discard_window() {
  abandon_backward();
  leave_abandoned(/*reduces=*/true);
  for (BucketState& state : states_) {
    state.writers.hand_over(*streams_, streams_->current(), Handover::written);
    give_back_late(state);
  }
  std::ranges::fill(written_, 0);
  device_->zero(tally_);
  start_window();
}

void GradientReducer::start_window() {
  ZR_CHECK(pending_.empty(), "gradients still under way after the step");
  plan_.begin_again();
  schedule_.start_backward();
  window_arrivals_ = 0;
  missed_parameter_ = -1;
  is_abandoned_ = false;
  for (BucketState& state : states_) {
    state.has_sums = false;
    state.reduction_started = false;
  }
  on_host_.start_window();
  streams_->record(consumed_, streams_->current());
}

}  // namespace zerorun
