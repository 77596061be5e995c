#include "zero/gradient_reducer.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace zerorun {
namespace {

// Reductions that may be under way behind the bucket being filled. The sums are computed by whoever waits,
// and two buckets later the other ranks' gradients are usually there.
constexpr int kSlackWithOverlap = 2;

// The largest bucket that is not there for a lone large parameter, if there is one.
int64_t common_bucket_numel(const Buckets& buckets) {
  int64_t shared = 0;
  int64_t lone = 0;
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    const BucketLayout& layout = buckets.layout(bucket);
    int64_t& largest = layout.parameters.size() > 1 ? shared : lone;
    largest = std::max(largest, layout.numel);
  }
  return shared > 0 ? shared : lone;
}

}  // namespace

// Calls the hook that was there before, then hands the gradient over.
struct GradientReducer::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(std::shared_ptr<GradientReducer*> reducer, int parameter,
       std::unique_ptr<PostAccumulateGradHook> earlier)
      : reducer(std::move(reducer)), parameter(parameter), earlier(std::move(earlier)) {}

  void operator()(const at::Tensor& tensor) override {
    if (earlier) (*earlier)(tensor);
    if (*reducer) (*reducer)->on_gradient(parameter, tensor);
  }

  std::shared_ptr<GradientReducer*> reducer;
  int parameter;
  std::unique_ptr<PostAccumulateGradHook> earlier;
};

GradientReducer::GradientReducer(const Buckets& buckets, Communicator& communicator, StagePolicy policy,
                                 bool overlap)
    : buckets_(&buckets),
      communicator_(&communicator),
      policy_(policy),
      overlap_(overlap),
      pool_(communicator, common_bucket_numel(buckets)),
      states_(buckets.trained_count()),
      parameters_(buckets.trained().size()),
      self_(std::make_shared<GradientReducer*>(this)),
      plan_(buckets.trained_count()) {
  std::iota(plan_.begin(), plan_.end(), 0);
  if (policy.reduce_every_backward) pool_.reserve(std::min(slack() + 1, buckets.trained_count()));
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    BucketState& state = states_[bucket];
    const BucketLayout& layout = buckets.layout(bucket);
    if (policy.reduce_every_backward) {
      state.reduced = communicator.allocate(layout.slice_numel, at::kFloat);
    } else {
      state.buffer = communicator.allocate(layout.numel, at::kFloat);
      state.reduced =
          policy.replicate_update ? state.buffer : buckets.slice(bucket, state.buffer, communicator.rank());
    }
  }
  for (size_t index = 0; index < parameters_.size(); ++index) {
    const at::Tensor& tensor = buckets.parameters()[index].tensor;
    auto& slot = torch::autograd::impl::post_acc_grad_hooks(tensor);
    auto hook = std::make_unique<Hook>(self_, static_cast<int>(index), std::move(slot));
    torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::move(hook));
    tensor.mutable_grad().reset();  // what a backward before initialize() left is no part of this training
  }
}

GradientReducer::~GradientReducer() {
  *self_ = nullptr;
  for (const NamedParameter& parameter : buckets_->trained()) {
    auto& slot = torch::autograd::impl::post_acc_grad_hooks(parameter.tensor);
    auto* hook = dynamic_cast<Hook*>(slot.get());
    if (hook && hook->reducer == self_) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, std::move(hook->earlier));
    }
  }
}

int GradientReducer::slack() const {
  return overlap_ ? kSlackWithOverlap : 0;
}

void GradientReducer::start_backward(bool boundary) {
  in_backward_ = true;
  reducing_ = policy_.reduce_every_backward || boundary;
  arrival_count_ = 0;
  if (policy_.reduce_every_backward) {
    next_in_plan_ = 0;
    for (BucketState& state : states_) state.departed = false;
  }
  for (int bucket = 0; bucket < buckets_->trained_count(); ++bucket) {
    states_[bucket].missing = static_cast<int>(buckets_->layout(bucket).parameters.size());
    states_[bucket].completed_at = 0;
  }
  for (ParameterState& state : parameters_) state.arrivals = 0;
}

void GradientReducer::on_gradient(int parameter, const at::Tensor& tensor) {
  c10::NoGradGuard no_grad;  // create_graph leaves grad mode on
  std::lock_guard lock(hooks_);
  if (!in_backward_) {
    if (!bypassed_) bypassed_ = parameter;
    return;
  }
  at::Tensor gradient = std::exchange(tensor.mutable_grad(), at::Tensor());
  if (!gradient.defined()) {
    throw UserError(
        "the gradient of parameter " + buckets_->parameters()[parameter].name +
        " was taken away by a hook of the program before the engine saw it: let such hooks keep grad()");
  }
  if (!buckets_->in_place(parameter)) return;  // step() names it
  place(parameter, gradient.is_sparse() ? gradient.to_dense() : gradient);

  ParameterState& state = parameters_[parameter];
  BucketState& bucket = states_[buckets_->bucket_of(parameter)];
  bucket.completed_at = ++arrival_count_;
  if (++state.arrivals == state.expected) {
    --bucket.missing;
    depart_ready();
  }
}

void GradientReducer::place(int parameter, const at::Tensor& gradient) {
  const int bucket = buckets_->bucket_of(parameter);
  BucketState& state = states_[bucket];
  if (state.departed) {
    if (!state.late.defined())
      state.late = communicator_->allocate(buckets_->layout(bucket).numel, at::kFloat);
    buckets_->view(parameter, state.late).add_(gradient);
    return;
  }
  if (!state.buffer.defined()) state.buffer = pool_.take(buckets_->layout(bucket).numel);
  at::Tensor place = buckets_->view(parameter, state.buffer);
  if (std::exchange(parameters_[parameter].written, true)) {
    place.add_(gradient);
  } else {
    place.copy_(gradient);
  }
}

void GradientReducer::depart_ready() {
  if (!reducing_) return;
  while (next_in_plan_ < plan_.size() && states_[plan_[next_in_plan_]].missing == 0)
    depart(plan_[next_in_plan_++]);
}

void GradientReducer::depart(int bucket) {
  BucketState& state = states_[bucket];
  if (!state.buffer.defined()) state.buffer = pool_.take(buckets_->layout(bucket).numel);
  for (int parameter : buckets_->layout(bucket).parameters) {
    if (!std::exchange(parameters_[parameter].written, false))
      buckets_->view(parameter, state.buffer).zero_();
  }
  state.departed = true;

  Flight flight{.bucket = bucket, .work = nullptr, .is_gather = false, .buffer = state.buffer, .addend = {}};
  at::Tensor own = buckets_->slice(bucket, state.buffer, communicator_->rank());
  if (policy_.reduce_every_backward) {
    buckets_->clear_padding(bucket, state.buffer);
    state.buffer.reset();
    if (std::exchange(state.has_sums, true)) {
      flight.addend = own;
    } else {
      own = state.reduced;
    }
  }
  flight.work = communicator_->reduce_scatter(own, flight.buffer, "gradients of " + buckets_->label(bucket));
  flights_.push_back(std::move(flight));
  ++reductions_in_flight_;
  while (reductions_in_flight_ > slack()) retire_one_reduction();
  if (!overlap_) finish_reduction();
}

void GradientReducer::retire_one_reduction() {
  const int before = reductions_in_flight_;
  while (reductions_in_flight_ == before) retire_oldest();
}

void GradientReducer::retire_oldest() {
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  flight.work->wait();
  if (flight.is_gather) return;
  --reductions_in_flight_;
  BucketState& state = states_[flight.bucket];
  if (flight.addend.defined()) state.reduced.add_(flight.addend);
  if (policy_.reduce_every_backward) {
    pool_.give_back(std::move(flight.buffer));
  } else if (policy_.replicate_update) {
    at::Tensor own = buckets_->slice(flight.bucket, state.buffer, communicator_->rank());
    auto work =
        communicator_->all_gather(state.buffer, own, "gradients of " + buckets_->label(flight.bucket));
    flights_.push_back(
        {.bucket = flight.bucket, .work = std::move(work), .is_gather = true, .buffer = {}, .addend = {}});
  }
}

void GradientReducer::finish_backward() {
  in_backward_ = false;
  if (reducing_) {
    while (next_in_plan_ < plan_.size()) depart(plan_[next_in_plan_++]);
    if (!planned_) {
      make_plan();
      // Buffers that only the unplanned order needed are not kept.
      finish_reduction();
      pool_.trim(slack() + 1);
    }
  }
  for (ParameterState& state : parameters_) state.expected = std::max(state.expected, state.arrivals);
}

void GradientReducer::make_plan() {
  const int count = buckets_->trained_count();
  std::vector<int> own_order(count);
  std::iota(own_order.begin(), own_order.end(), 0);
  std::stable_sort(own_order.begin(), own_order.end(), [&](int a, int b) {
    auto key = [&](int bucket) {
      const int64_t at = states_[bucket].completed_at;
      return at > 0 ? at : std::numeric_limits<int64_t>::max();
    };
    return key(a) < key(b);
  });

  // Position on rank 0, and on how many ranks some parameter of the bucket had not exactly one gradient.
  at::Tensor votes = at::zeros({2 * count}, at::kLong);
  int64_t* data = votes.mutable_data_ptr<int64_t>();
  for (int position = 0; position < count && communicator_->rank() == 0; ++position)
    data[own_order[position]] = position;
  for (size_t index = 0; index < parameters_.size(); ++index) {
    if (parameters_[index].arrivals != 1) data[count + buckets_->bucket_of(static_cast<int>(index))] = 1;
  }
  communicator_->all_reduce(votes, "the plan of departures")->wait();
  std::stable_sort(plan_.begin(), plan_.end(), [&](int a, int b) {
    return std::tuple(data[count + a] > 0, data[a]) < std::tuple(data[count + b] > 0, data[b]);
  });
  planned_ = true;
}

void GradientReducer::finish_reduction() {
  while (!flights_.empty()) retire_oldest();
}

void GradientReducer::reduce_late(int bucket) {
  BucketState& state = states_[bucket];
  at::Tensor late = state.late.defined()
                        ? std::exchange(state.late, at::Tensor())
                        : communicator_->allocate(buckets_->layout(bucket).numel, at::kFloat);
  const std::string label = "late gradients of " + buckets_->label(bucket);
  at::Tensor own = buckets_->slice(bucket, late, communicator_->rank());
  communicator_->reduce_scatter(own, late, label)->wait();
  if (policy_.replicate_update) communicator_->all_gather(late, own, label)->wait();
  state.reduced.add_(policy_.replicate_update ? late : own);
}

void GradientReducer::start_window() {
  ZR_CHECK(flights_.empty(), "gradients still under way after the step");
  next_in_plan_ = 0;
  for (BucketState& state : states_) {
    state.has_sums = false;
    state.departed = false;
  }
}

int64_t GradientReducer::gradient_bytes() const {
  int64_t total = 0;
  for (const BucketState& state : states_) {
    total +=
        static_cast<int64_t>(policy_.reduce_every_backward ? state.reduced.nbytes() : state.buffer.nbytes());
  }
  return total;
}

int64_t GradientReducer::buffer_bytes() const {
  int64_t total = pool_.bytes() + communicator_->scratch_bytes();
  for (const BucketState& state : states_) {
    if (state.late.defined()) total += static_cast<int64_t>(state.late.nbytes());
  }
  return total;
}

}  // namespace zerorun
