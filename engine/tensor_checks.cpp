#include "engine/tensor_checks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/error.h"
#include "comm/agreement.h"

namespace zerorun {
namespace {

// What may differ by rounding between tensor ranks that compute the same, relative to the magnitudes: nothing
// does on CPUs, but kernels of GPUs may sum in another order.
double tolerance_of(const EngineState& state) {
  return state.config.precision.training == Dtype::fp32 ? 1e-3 : 5e-2;
}

// The numbers of all tensor ranks, rank by rank, on the CPU.
at::Tensor gather_numbers(const EngineState& state, const at::Tensor& own, const std::string& label) {
  Communicator& ranks = state.mesh.along(MeshAxis::tensor);
  const at::Tensor all = at::empty({ranks.world_size() * own.numel()}, own.options());
  ranks.all_gather(all, own, label)->wait();
  return all.view({ranks.world_size(), own.numel()});
}

constexpr const char* kSameSamples =
    "if tensor ranks were given different samples, give them the same ones (draw them by "
    "mesh().data().rank(), not by the rank in the job); if dropout draws other random numbers on them, seed "
    "them alike";

// The pieces of unsplit trained parameters that lie in this rank's slices of the states that `state_of` gives
// for a bucket, or of none.
struct Piece {
  int parameter;
  at::Tensor values;
};

template <typename StateOf>
std::vector<Piece> whole_pieces(EngineState& state, const StateOf& state_of) {
  std::vector<Piece> pieces;
  for (int bucket = 0; bucket < state.buckets.trained_count(); ++bucket) {
    const BucketLayout& layout = state.store.layout(bucket);
    const StateTensor* of_bucket = layout.share == Share::split ? nullptr : state_of(bucket);
    if (!of_bucket) continue;
    for (const int parameter : layout.parameters) {
      const auto [begin, numel] = state.store.range_in_slice(parameter, state.mesh.shards().rank());
      if (numel > 0) pieces.push_back({parameter, of_bucket->own.narrow(0, begin, numel)});
    }
  }
  return pieces;
}

// What tensor rank `rank` has of a piece that differs from the first tensor rank's.
struct Difference {
  int parameter;
  int rank;
  double first;
  double other;
};

struct Compared {
  bool is_finite;  // else nothing was compared
  std::optional<Difference> difference;
};

// Compares sums and sums of magnitudes. The same on all ranks of the group.
Compared compare(const EngineState& state, const std::vector<Piece>& pieces, const std::string& label) {
  const auto count = static_cast<int64_t>(pieces.size());
  const at::Tensor sums = at::zeros({2 * count + 1}, at::kDouble);
  double* data = sums.mutable_data_ptr<double>();
  for (int64_t index = 0; index < count; ++index) {
    const at::Tensor exact = pieces[index].values.to(at::kDouble);
    data[2 * index] = exact.sum().item<double>();
    data[2 * index + 1] = exact.abs().sum().item<double>();
  }
  const at::Tensor all = gather_numbers(state, sums, label);
  Compared compared{.is_finite = all.isfinite().all().item<bool>(), .difference = {}};
  if (!compared.is_finite) return compared;
  const auto values = all.accessor<double, 2>();
  for (int rank = 1; rank < all.size(0); ++rank) {
    for (int64_t index = 0; index < 2 * count; ++index) {
      const double first = values[0][index], other = values[rank][index];
      const double magnitude = std::max(values[0][index | 1], values[rank][index | 1]);
      if (std::abs(first - other) <= tolerance_of(state) * magnitude) continue;
      compared.difference = {pieces[index / 2].parameter, rank, first, other};
      return compared;
    }
  }
  return compared;
}

std::string name_of(const EngineState& state, const Difference& found) {
  return "parameter " + state.buckets.parameters()[found.parameter].name +
         ", which all tensor ranks have whole, differs between tensor ranks 0 and " +
         std::to_string(found.rank) + c10::str(" (sums ", found.first, " and ", found.other, ")");
}

// A plan's tensors have sizes only.
bool has_no_values(const EngineState& state) {
  return state.mesh.world().device().location().is_meta();
}

}  // namespace

void check_losses(const EngineState& state, const at::Tensor& loss, const std::string& call) {
  if (!state.tensor_rule || state.progress.counts().global > 0 || has_no_values(state)) return;
  c10::NoGradGuard no_grad;
  const at::Tensor own = loss.detach().to(at::kCPU, at::kDouble).reshape({1}).clone();
  const at::Tensor all = gather_numbers(state, own, "losses of tensor ranks");
  const auto values = all.accessor<double, 2>();
  for (int rank = 1; rank < all.size(0); ++rank) {
    const double first = values[0][0], other = values[rank][0];
    if (!std::isfinite(first) || !std::isfinite(other)) continue;
    if (std::abs(first - other) <= tolerance_of(state) * std::max(std::abs(first), std::abs(other))) continue;
    throw UserError(c10::str(call, "(): the losses of tensor ranks 0 and ", rank, " are ", first, " and ",
                             other, ", and must be the same: ", kSameSamples,
                             "; else a module of the tensor plan is colwise and its result is used as if it "
                             "were whole (colwise_gather_output gathers it)"));
  }
}

bool check_whole_gradients(EngineState& state) {
  if (has_no_values(state)) return true;
  c10::NoGradGuard no_grad;
  const auto gradient = [&](int bucket) { return &state.store.at(bucket, kGradient); };
  const Compared compared = compare(state, whole_pieces(state, gradient), "gradients of tensor ranks");
  on_all_ranks(state.mesh.world(), "the comparison of gradients among tensor ranks", [&] {
    if (!compared.difference) return;
    throw UserError("the gradient of " + name_of(state, *compared.difference) +
                    ": if the module uses it on split values, as norms of heads do, give it the word "
                    "replicated_with_grad_allreduce in the tensor plan; " +
                    kSameSamples);
  });
  // The same on all ranks: each has looked at other slices, and perhaps at another pipeline stage.
  const at::Tensor infinite = at::zeros({1}, at::kLong);
  *infinite.mutable_data_ptr<int64_t>() = compared.is_finite ? 0 : 1;
  state.mesh.world().all_reduce(infinite, "which gradients are finite")->wait();
  return *infinite.const_data_ptr<int64_t>() == 0;
}

void check_whole_values(EngineState& state, const std::string& call) {
  if (!state.has_tensor_plan) return;
  c10::NoGradGuard no_grad;
  const auto values = [&](int bucket) -> const StateTensor* {
    if (state.buckets.masters().has(bucket))
      return state.store.has_in_files(bucket) ? nullptr : &state.store.at(bucket, kMaster);
    return state.store.has_values_in_files(bucket) ? nullptr : &state.store.at(bucket, kValue);
  };
  const Compared compared = compare(state, whole_pieces(state, values), "values of tensor ranks");
  on_all_ranks(state.mesh.world(), "the comparison of values among tensor ranks", [&] {
    if (!compared.difference) return;
    throw UserError(call + "(): " + name_of(state, *compared.difference) +
                    ": their trainings have drifted apart; " + kSameSamples);
  });
}

}  // namespace zerorun
