#include "zero/gradient_reducer.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "base/memory_report.h"
#include "device/dtypes.h"
#include "device/step_facts.h"

namespace zerorun {
namespace {

// The number of reductions that may be in flight while a bucket is being filled. Work::wait() adds the other
// ranks' gradients. These have usually arrived by the time two more buckets are filled.
constexpr int kSlackWithOverlap = 2;

// Elements of the largest bucket with several parameters or, if there is none, of the largest bucket.
int64_t common_bucket_numel(const SliceStore& store, const Buckets& buckets) {
  int64_t shared = 0;
  int64_t lone = 0;
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    const BucketLayout& layout = store.layout(bucket);
    int64_t& largest = layout.parameters.size() > 1 ? shared : lone;
    largest = std::max(largest, layout.numel);
  }
  return shared > 0 ? shared : lone;
}

}  // namespace

GradientReducer::GradientReducer(const Buckets& buckets, SliceStore& store, Communicator& communicator,
                                 const ReducerOptions& options)
    : buckets_(&buckets),
      store_(&store),
      communicator_(&communicator),
      device_(&communicator.device()),
      streams_(&communicator.device().streams()),
      options_(options),
      quantized_(options.quantizes, communicator, options.summing_group),
      pool_(communicator, scalar_type(options.communication), common_bucket_numel(store, buckets)),
      late_pool_(communicator, scalar_type(options.accumulation), 0),
      states_(buckets.trained_count()),
      on_host_(communicator.device()),
      written_(buckets.trained().size()),
      self_(std::make_shared<GradientReducer*>(this)),
      plan_(store, buckets),
      schedule_(buckets.trained_count()) {
  for (int bucket = 0; bucket < store.count() && !states_.empty(); ++bucket) {
    if (communicator.world_size() > 1 && buckets.kind(bucket).comes_and_goes()) follows_uses_ = true;
  }
  if (follows_uses_) complete_counts_ = at::zeros({buckets.trained_count()}, at::kLong);
  tally_ = device_->allocate(sizeof(Tally), at::kByte);
  late_counts_ = at::zeros({buckets.trained_count() + kNotices}, at::kLong);
  if (pooled()) pool_.reserve(std::min(slack() + 1, buckets.trained_count()));
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) make_memory(bucket);
  for (size_t index = 0; index < written_.size(); ++index) {
    set_hook(static_cast<int>(index));
    // Gradients from before initialize() are not part of this training.
    buckets.parameters()[index].tensor.mutable_grad().reset();
  }
}

void GradientReducer::make_memory(int bucket) {
  BucketState& state = states_[bucket];
  const BucketLayout& layout = store_->layout(bucket);
  const AllocatingFor scope(MemoryUse::gradients);
  auto keep = [&](Extent extent, at::Tensor memory) {
    return store_->put(bucket, StateKind::gradient, kGradient, extent, std::move(memory)).memory;
  };
  if (options_.policy.reduce_every_backward) {
    keep(Extent::slice, allocate(layout.slice_numel, options_.accumulation));
  } else if (reduced_in_sums()) {
    state.sums = keep(Extent::bucket, allocate_own(layout.numel, gradient_dtype()));
  } else {
    state.buffer.memory = keep(Extent::bucket, allocate(layout.numel, gradient_dtype()));
  }
  if (options_.to_host) on_host_.add_bucket(store_->at(bucket, kGradient).own);
}

const at::Tensor& GradientReducer::gradient(int bucket) const {
  const StateTensor& state = store_->at(bucket, kGradient);
  return options_.policy.replicate_update ? state.memory : state.own;
}

int GradientReducer::slack() const {
  return options_.overlap ? kSlackWithOverlap : 0;
}

// Without gradient accumulation, separate fp32 sums would only be copies of the reduced gradients.
bool GradientReducer::reduced_in_sums() const {
  return !options_.policy.reduce_every_backward && options_.accumulation != options_.communication &&
         (options_.accumulates || options_.accumulation != Dtype::fp32);
}

Dtype GradientReducer::gradient_dtype() const {
  return options_.policy.reduce_every_backward || reduced_in_sums() ? options_.accumulation
                                                                    : options_.communication;
}

at::Tensor GradientReducer::allocate(int64_t numel, Dtype dtype) {
  return communicator_->allocate(numel, scalar_type(dtype));
}

at::Tensor GradientReducer::allocate_own(int64_t numel, Dtype dtype) {
  return device_->allocate(numel, scalar_type(dtype));
}

// Makes the missing buffers of sums. They are missing if a window has more backwards than the config says.
void GradientReducer::make_sums() {
  const AllocatingFor scope(MemoryUse::gradients);
  // Once a reduction has started, further gradients go to late buffers and need no sums.
  const bool reduction_started = std::ranges::any_of(states_, &BucketState::reduction_started);
  if (reduction_started || options_.accumulation == options_.communication) return;
  for (int bucket = 0; bucket < buckets_->trained_count(); ++bucket) {
    if (states_[bucket].sums.defined()) continue;
    states_[bucket].sums = allocate_own(store_->layout(bucket).numel, options_.accumulation);
  }
}

void GradientReducer::start_backward(bool boundary, float scale) {
  reducing_ = options_.policy.reduce_every_backward || boundary;
  at_boundary_ = boundary;
  if (!reducing_) make_sums();
  scale_ = scale;
  in_backward_ = true;
  is_abandoned_ = has_gradients_of_backward_ = false;
  if (options_.policy.reduce_every_backward) {
    plan_.begin_again();
    for (BucketState& state : states_) state.reduction_started = false;
    schedule_.start_backward();
  }
  if (context() == Context::outside) schedule_.leave_backward();
  plan_.start_backward();
}

void GradientReducer::place(int parameter, const at::Tensor& gradient) {
  const int bucket = buckets_->bucket_of(parameter);
  BucketState& state = states_[bucket];
  if (state.reduction_started) {
    start_writing(state);
    if (!state.late.memory.defined()) {
      state.late = late_pool_.take(store_->layout(bucket).numel);
      streams_->wait(state.late.free, streams_->current(), Handover::free);
      device_->zero(state.late.memory);
    }
    device_->add_scaled(buckets_->piece(parameter, state.late.memory), gradient, scale_,
                        finite_check(parameter));
    return;
  }
  const bool travels = !state.sums.defined();
  if (travels) take_buffer(bucket);
  start_writing(state);
  const at::Tensor place = buckets_->piece(parameter, travels ? state.buffer.memory : state.sums);
  const float factor = travels ? options_.factor * scale_ : scale_;
  if (std::exchange(written_[parameter], 1) != 0) {
    device_->add_scaled(place, gradient, factor, finite_check(parameter));
  } else {
    device_->copy_scaled(place, gradient, factor, finite_check(parameter));
  }
}

// The tally records `number` (even) for an infinite or NaN gradient, and `number` + 1 for a finite gradient
// that overflows in the dtype of the buffer.
FiniteCheck GradientReducer::finite_check(int parameter) const {
  const auto parameters = static_cast<int64_t>(written_.size());
  return {.tally = tally_, .number = 2 * (window_arrivals_ * parameters + parameter + 1)};
}

GradientReducer::NotFinite GradientReducer::not_finite(int64_t number) const {
  const auto parameters = static_cast<int64_t>(written_.size());
  return {.parameter = static_cast<int>((number / 2 - 1) % parameters), .too_large = number % 2 == 1};
}

void GradientReducer::take_buffer(int bucket) {
  BucketState& state = states_[bucket];
  if (state.buffer.memory.defined()) return;
  state.buffer = pool_.take(store_->layout(bucket).numel);
  streams_->wait(state.buffer.free, streams_->current(), Handover::free);
}

// Call this before the current stream writes to the bucket's memory. Makes the stream wait for all earlier
// uses.
void GradientReducer::start_writing(BucketState& state) {
  const StreamId stream = streams_->current();
  if (state.writers.has(stream)) return;
  state.writers.hand_over(*streams_, stream, Handover::written);
  streams_->wait(state.buffer.free, stream, Handover::free);
  streams_->wait(consumed_, stream, Handover::free);
  state.writers.add(stream);
}

void GradientReducer::start_ready_reductions() {
  if (!reducing_ || follows_uses_) return;
  while (const auto bucket = plan_.take_complete()) start_reduction(*bucket);
}

// Fills the communication buffer with this rank's gradients for the bucket, or zeros for parameters without a
// gradient.
void GradientReducer::complete_buffer(int bucket) {
  BucketState& state = states_[bucket];
  take_buffer(bucket);
  start_writing(state);
  state.writers.hand_over(*streams_, streams_->current(), Handover::written);
  for (int parameter : store_->layout(bucket).parameters) {
    if (std::exchange(written_[parameter], 0) == 0) {
      device_->zero(buckets_->piece(parameter, state.buffer.memory));
    } else if (state.sums.defined()) {
      device_->copy_scaled(buckets_->piece(parameter, state.buffer.memory),
                           buckets_->piece(parameter, state.sums), options_.factor, finite_check(parameter));
    }
  }
  if (pooled()) buckets_->clear_padding(bucket, state.buffer.memory);
  streams_->record(state.complete, streams_->current());
  state.writers.clear();
}

void GradientReducer::start_reduction(int bucket) {
  complete_buffer(bucket);
  BucketState& state = states_[bucket];
  state.reduction_started = true;
  if (follows_uses_) schedule_.note_start(bucket);
  PendingReduction pending{.bucket = bucket,
                           .work = nullptr,
                           .is_gather = false,
                           .buffer = {.memory = state.buffer.memory, .free = {}},
                           .arrived = {},
                           .is_first = !std::exchange(state.has_sums, true)};
  if (pooled()) pending.buffer = std::exchange(state.buffer, {});
  at::Tensor own = store_->slice_of(bucket, pending.buffer.memory, communicator_->rank());
  if (options_.policy.reduce_every_backward && pending.is_first &&
      options_.accumulation == options_.communication) {
    own = gradient(bucket);
  } else if (pooled()) {
    pending.arrived = options_.policy.replicate_update ? pending.buffer.memory : own;
  }
  {
    StreamScope scope(*streams_, Lane::reduce);
    streams_->wait(state.complete, streams_->current(), Handover::written);
    start_change(bucket);
    pending.work = reduce_scatter(own, pending.buffer.memory, "gradients of " + buckets_->label(bucket));
  }
  pending_.push_back(std::move(pending));
  ++reductions_in_flight_;
  // On a device with streams no reduction needs to stay in flight: wait() does not block the host, because
  // only the reduce stream waits.
  const int may_be_in_flight = streams_->asynchronous() ? 0 : slack();
  while (reductions_in_flight_ > may_be_in_flight) retire_one_reduction();
  if (!options_.overlap) finish_reduction();
}

std::unique_ptr<Work> GradientReducer::reduce_scatter(const at::Tensor& own, const at::Tensor& buffer,
                                                      std::string label) {
  return quantized_.enabled() ? quantized_.reduce_scatter(own, buffer, std::move(label))
                              : communicator_->reduce_scatter(own, buffer, std::move(label));
}

void GradientReducer::retire_one_reduction() {
  const int before = reductions_in_flight_;
  while (reductions_in_flight_ == before) retire_oldest();
}

void GradientReducer::retire_oldest() {
  PendingReduction pending = std::move(pending_.front());
  pending_.pop_front();
  StreamScope scope(*streams_, Lane::reduce);
  pending.work->wait();
  if (!pending.is_gather) {
    --reductions_in_flight_;
    if (options_.policy.replicate_update) {
      at::Tensor own = store_->slice_of(pending.bucket, pending.buffer.memory, communicator_->rank());
      pending.is_gather = true;
      pending.work = communicator_->all_gather(pending.buffer.memory, own,
                                               "gradients of " + buckets_->label(pending.bucket));
      pending_.push_back(std::move(pending));
      return;
    }
  }
  if (pending.arrived.defined()) {
    start_change(pending.bucket);
    // No finite check here, because the norm detects sums that are not finite.
    const at::Tensor& reduced = gradient(pending.bucket);
    if (pending.is_first) {
      device_->copy_scaled(reduced, pending.arrived, 1);
    } else {
      device_->add_scaled(reduced, pending.arrived, 1);
    }
  }
  if (at_boundary_) on_host_.send(pending.bucket);
  if (!pooled()) return;
  streams_->record(pending.buffer.free, streams_->current());
  pool_.give_back(std::move(pending.buffer));
}

void GradientReducer::finish_backward() {
  in_backward_ = is_observed_ = false;
  if (reducing_) finish_plan();
  plan_.finish_backward();
}

void GradientReducer::start_remaining_reductions() {
  if (!follows_uses_) {
    while (const auto bucket = plan_.take()) start_reduction(*bucket);
    return;
  }
  for (const int bucket : plan_.order()) {
    if (!states_[bucket].reduction_started) start_reduction(bucket);
  }
}

// Starts the remaining reductions, and plans the order for later backwards if this one has none.
void GradientReducer::finish_plan() {
  schedule_.end_uses();
  const bool planned = follows_uses_ ? !schedule_.is_new() : plan_.made();
  if (!planned && follows_uses_) plan_.make(*communicator_);
  start_remaining_reductions();
  if (!planned && !follows_uses_) plan_.make(*communicator_);
  if (follows_uses_) schedule_.finish_backward();
  if (planned) return;
  // The planned order needs fewer buffers than the order of this backward: frees the rest.
  finish_reduction();
  pool_.trim(slack() + 1);
}

int64_t GradientReducer::buffer_bytes() const {
  int64_t total = pool_.bytes() + late_pool_.bytes() + communicator_->scratch_bytes();
  for (const BucketState& state : states_) {
    if (state.sums.defined() && !reduced_in_sums()) total += static_cast<int64_t>(state.sums.nbytes());
  }
  return total;
}

}  // namespace zerorun
