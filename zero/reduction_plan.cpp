#include "zero/reduction_plan.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <tuple>

namespace zerorun {

ReductionPlan::ReductionPlan(const SliceStore& store, const Buckets& buckets)
    : store_(&store),
      buckets_(&buckets),
      states_(buckets.trained_count()),
      parameters_(buckets.trained().size()),
      order_(buckets.trained_count()) {
  std::iota(order_.begin(), order_.end(), 0);
  std::ranges::stable_sort(order_, std::greater<>(),
                           [&](int bucket) { return std::ranges::min(store.layout(bucket).parameters); });
}

void ReductionPlan::start_backward() {
  arrivals_ = 0;
  for (size_t bucket = 0; bucket < states_.size(); ++bucket) {
    const auto& parameters = store_->layout(static_cast<int>(bucket)).parameters;
    states_[bucket] = {.missing = static_cast<int>(parameters.size())};
  }
  for (ParameterState& state : parameters_) state.arrivals = 0;
}

void ReductionPlan::finish_backward() {
  for (ParameterState& state : parameters_) state.expected = std::max(state.expected, state.arrivals);
}

void ReductionPlan::note_gradient(int parameter) {
  ParameterState& state = parameters_[parameter];
  BucketState& bucket = states_[buckets_->bucket_of(parameter)];
  bucket.last_arrival = ++arrivals_;
  if (++state.arrivals == state.expected) --bucket.missing;
}

std::optional<int> ReductionPlan::take_complete() {
  if (next_ == order_.size() || !is_complete(order_[next_])) return {};
  return order_[next_++];
}

std::optional<int> ReductionPlan::take() {
  if (next_ == order_.size()) return {};
  return order_[next_++];
}

void ReductionPlan::make(Communicator& communicator) {
  const int count = buckets_->trained_count();
  std::vector<int> own_order(count);
  std::iota(own_order.begin(), own_order.end(), 0);
  std::stable_sort(own_order.begin(), own_order.end(), [&](int a, int b) {
    auto key = [&](int bucket) {
      const int64_t at = states_[bucket].last_arrival;
      return at > 0 ? at : std::numeric_limits<int64_t>::max();
    };
    return key(a) < key(b);
  });

  // After the all-reduce, the first half has each bucket's position in rank 0's order. The second half has,
  // for each bucket, the number of ranks on which a parameter of it did not get exactly one gradient.
  at::Tensor votes = at::zeros({2 * count}, at::kLong);
  int64_t* data = votes.mutable_data_ptr<int64_t>();
  for (int position = 0; position < count && communicator.rank() == 0; ++position) {
    data[own_order[position]] = position;
  }
  for (size_t index = 0; index < parameters_.size(); ++index) {
    if (parameters_[index].arrivals != 1) data[count + buckets_->bucket_of(static_cast<int>(index))] = 1;
  }
  communicator.all_reduce(votes, "the order of reductions")->wait();
  std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
    return std::tuple(data[count + a] > 0, data[a]) < std::tuple(data[count + b] > 0, data[b]);
  });
  made_ = true;
}

}  // namespace zerorun
