#include "engine/step_outcome.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "device/step_facts.h"

namespace zerorun {

StepOutcome::StepOutcome(const SliceStore& store, const Buckets& buckets, const GradientReducer& reducer,
                         Communicator& communicator, Dtype communication)
    : store_(&store),
      buckets_(&buckets),
      reducer_(&reducer),
      communicator_(&communicator),
      communication_(communication) {
  int64_t number = 1;
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    first_sums_.push_back(number);
    number += store.layout(bucket).numel;
  }
  const int64_t numel = exchanged_numel(communicator.world_size()) + kFactsNumel;
  exchange_ = communicator.device().allocate(numel, at::kDouble);
  on_host_ = communicator.device().allocate_on_host(numel, at::kDouble);
}

void StepOutcome::add(int bucket, const at::Tensor& slice) {
  communicator_->device().add_squares(reducer_->tally(), slice, sum_number(bucket, communicator_->rank()));
}

void StepOutcome::all_reduce(const StepRule& rule) {
  const int ranks = communicator_->world_size();
  Device& device = communicator_->device();
  Streams& streams = device.streams();
  device.publish(exchange_, reducer_->tally(), communicator_->rank(), ranks);
  communicator_->all_reduce(exchange_.narrow(0, 0, exchanged_numel(ranks)), "the gradient norm")->wait();
  device.decide(exchange_, ranks, rule);
  streams.record(measured_, streams.current());
  StreamScope copies(streams, Lane::copy);
  streams.wait(measured_, streams.current(), Handover::measured);
  device.copy(on_host_, exchange_);
  streams.record(copied_, streams.current());
}

at::Tensor StepOutcome::facts(bool on_host) const {
  return (on_host ? on_host_ : exchange_)
      .narrow(0, exchanged_numel(communicator_->world_size()), kFactsNumel);
}

void StepOutcome::await_facts() {
  // Waits for all work of this step on the device. The communicator detects missing ranks and names them, so
  // this timeout is longer than the communicator's.
  constexpr std::chrono::milliseconds kPatienceWithDevice = std::chrono::minutes(30);
  communicator_->device().streams().await(
      copied_, std::max(2 * communicator_->timeout(), kPatienceWithDevice), "the gradient norm");
  const auto ranks = static_cast<size_t>(communicator_->world_size());
  const double* exchanged = on_host_.const_data_ptr<double>();
  StepFacts facts;
  std::memcpy(&facts, exchanged + exchanged_numel(communicator_->world_size()), sizeof facts);
  norm_ = facts.norm;
  applied_ = facts.apply != 0;
  not_finite_ = applied_ ? "" : name_not_finite({exchanged + ranks, ranks}, {exchanged + 2 * ranks, ranks});
}

int64_t StepOutcome::sum_number(int bucket, int rank) const {
  return first_sums_[bucket] + rank * store_->layout(bucket).slice_numel;
}

const std::string& StepOutcome::parameter_of_sum(int64_t number) const {
  int bucket = 0;
  while (number >= sum_number(bucket, 0) + store_->layout(bucket).numel) ++bucket;
  return buckets_->parameters()[buckets_->parameter_at(bucket, number - sum_number(bucket, 0))].name;
}

std::string StepOutcome::name_not_finite(std::span<const double> gradients,
                                         std::span<const double> sums) const {
  auto first = [](std::span<const double> all) {
    int found = -1;
    for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
      if (all[rank] > 0 && (found < 0 || all[rank] < all[found])) found = rank;
    }
    return found;
  };
  if (const int rank = first(gradients); rank >= 0) {
    const auto [parameter, too_large] = reducer_->not_finite(static_cast<int64_t>(gradients[rank]));
    return "the gradient of parameter " + buckets_->parameters()[parameter].name + " on rank " +
           std::to_string(rank) +
           (too_large ? std::string(" is too large for ") + name_of(communication_) +
                            ", the dtype of gradients in collectives"
                      : " is not finite");
  }
  const int rank = first(sums);
  ZR_CHECK(rank >= 0, "the norm is not finite although every gradient is");
  return "the sum over ranks and micro-steps of the gradients of parameter " +
         parameter_of_sum(static_cast<int64_t>(sums[rank])) + " is not finite, though each gradient is";
}

}  // namespace zerorun
