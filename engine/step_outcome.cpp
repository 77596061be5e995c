#include "engine/step_outcome.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/activity_board.h"
#include "base/error.h"
#include "base/timeline.h"
#include "comm/agreement.h"
#include "device/step_facts.h"

namespace zerorun {

StepOutcome::StepOutcome(const SliceStore& store, const Buckets& buckets, const GradientReducer& reducer,
                         const Mesh& mesh, Dtype communication)
    : store_(&store),
      buckets_(&buckets),
      reducer_(&reducer),
      mesh_(&mesh),
      device_(&mesh.world().device()),
      communication_(communication) {
  int64_t number = 1;
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    first_sums_.push_back(number);
    number += store.layout(bucket).numel;
  }
  const int64_t numel = exchanged_numel(mesh.world().world_size()) + kFactsNumel;
  exchange_ = device_->allocate(numel, at::kDouble);
  on_host_ = device_->allocate_on_host(numel, at::kDouble);
}

void StepOutcome::add(int bucket, const at::Tensor& slice) {
  const double weight = store_->layout(bucket).counted ? 1 : 0;
  device_->add_squares(reducer_->tally(), slice, sum_number(bucket, mesh_->shards().rank()), weight);
}

void StepOutcome::all_reduce(const StepRule& rule) {
  Communicator& world = mesh_->world();
  const int ranks = world.world_size();
  Streams& streams = device_->streams();
  device_->publish(exchange_, reducer_->tally(), world.rank(), ranks);
  world.all_reduce(exchange_.narrow(0, 0, exchanged_numel(ranks)), "the gradient norm")->wait();
  device_->decide(exchange_, ranks, rule);
  streams.record(measured_, streams.current());
  StreamScope copies(streams, Lane::copy);
  streams.wait(measured_, streams.current(), Handover::measured);
  device_->copy(on_host_, exchange_);
  streams.record(copied_, streams.current());
}

at::Tensor StepOutcome::facts(bool on_host) const {
  return (on_host ? on_host_ : exchange_)
      .narrow(0, exchanged_numel(mesh_->world().world_size()), kFactsNumel);
}

void StepOutcome::await_facts() {
  // Waits for all work of this step on the device. The communicator detects missing ranks and names them, so
  // this timeout is longer than the communicator's.
  constexpr std::chrono::milliseconds kPatienceWithDevice = std::chrono::minutes(30);
  std::optional<TimelineSpan> span;
  std::optional<ShownWait> wait;  // the device does what waits for other ranks
  if (device_->streams().asynchronous()) {
    span.emplace(TimelineName::wait_for_device);
    wait.emplace("", "a wait for the device, which has the gradient norm to reduce");
  }
  device_->streams().await(copied_, std::max(2 * mesh_->world().timeout(), kPatienceWithDevice),
                           "the gradient norm");
  const auto ranks = static_cast<size_t>(mesh_->world().world_size());
  const double* exchanged = on_host_.const_data_ptr<double>();
  StepFacts facts;
  std::memcpy(&facts, exchanged + exchanged_numel(mesh_->world().world_size()), sizeof facts);
  norm_ = facts.norm;
  applied_ = facts.apply != 0;
  culprit_.reset();
  not_finite_.clear();
  if (applied_) return;
  culprit_ = find_culprit({exchanged + ranks, ranks}, {exchanged + 2 * ranks, ranks});
  not_finite_ = name_of(*culprit_);
}

void StepOutcome::ask_for_name() {
  if (!culprit_ || !mesh_->has_groups()) return;
  Communicator& world = mesh_->world();
  const bool answers = world.rank() == culprit_->rank;
  not_finite_ = exchange_texts(answers ? not_finite_ : "", world, "what is not finite")[culprit_->rank];
}

int64_t StepOutcome::sum_number(int bucket, int rank) const {
  return first_sums_[bucket] + rank * store_->layout(bucket).slice_numel;
}

const std::string& StepOutcome::parameter_of_sum(int64_t number) const {
  int bucket = 0;
  while (number >= sum_number(bucket, 0) + store_->layout(bucket).numel) ++bucket;
  return buckets_->parameters()[buckets_->parameter_at(bucket, number - sum_number(bucket, 0))].name;
}

StepOutcome::Culprit StepOutcome::find_culprit(std::span<const double> gradients,
                                               std::span<const double> sums) const {
  // Backward comes to the last pipeline stage first.
  const auto stage_of = [&](int rank) { return coordinates_of(rank, mesh_->sizes()).pipeline; };
  auto first = [&](std::span<const double> all) {
    int found = -1;
    for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
      if (!(all[rank] > 0)) continue;
      const bool is_earlier = found < 0 || stage_of(rank) > stage_of(found) ||
                              (stage_of(rank) == stage_of(found) && all[rank] < all[found]);
      if (is_earlier) found = rank;
    }
    return found;
  };
  if (const int rank = first(gradients); rank >= 0) {
    return {.rank = rank, .is_gradient = true, .number = static_cast<int64_t>(gradients[rank])};
  }
  const int rank = first(sums);
  ZR_CHECK(rank >= 0, "the norm is not finite although every gradient is");
  return {.rank = rank, .is_gradient = false, .number = static_cast<int64_t>(sums[rank])};
}

bool StepOutcome::is_in_own_group(int rank) const {
  return std::ranges::binary_search(mesh_->data().group_of_ranks().ranks, rank);
}

std::string StepOutcome::name_of(const Culprit& culprit) const {
  std::string place = "rank " + std::to_string(culprit.rank);
  if (mesh_->has_groups())
    place += " (" + describe(coordinates_of(culprit.rank, mesh_->sizes()), mesh_->sizes()) + ")";
  if (!is_in_own_group(culprit.rank)) return "a gradient on " + place + " is not finite";
  if (culprit.is_gradient) {
    const auto [parameter, too_large] = reducer_->not_finite(culprit.number);
    return "the gradient of parameter " + buckets_->parameters()[parameter].name + " on " + place +
           (too_large ? std::string(" is too large for ") + zerorun::name_of(communication_) +
                            ", the dtype of gradients in collectives"
                      : " is not finite");
  }
  return "the sum over ranks and micro-steps of the gradients of parameter " +
         parameter_of_sum(culprit.number) +
         (mesh_->has_groups() ? ", found on " + place + "," : std::string()) +
         " is not finite, though each gradient is";
}

}  // namespace zerorun
