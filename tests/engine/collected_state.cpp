#include "tests/engine/collected_state.h"

#include <catch2/catch.hpp>

#include "zero/coded_states.h"

namespace zerorun::testing {

void CollectedState::add(StateTraining& training) {
  EngineState& state = *training.state;
  if (state.residency) state.residency->finish_iteration();
  const auto& parameters = state.buckets.parameters();
  const std::lock_guard lock(mutex_);
  for (int index = 0; index < static_cast<int>(parameters.size()); ++index) {
    const bool has_master = state.buckets.masters().has(state.buckets.bucket_of(index));
    state.store.for_each_piece(index, [&](const StatePiece& piece) {
      const StateTensor& kept = *piece.state;
      if (kept.kind == StateKind::gradient || (kept.kind == StateKind::value && has_master)) return;
      const bool exact = kept.kind != StateKind::moment;
      at::Tensor& whole = whole_[(exact ? "exact" : kept.name) + " of " + parameters[index].name];
      if (!whole.defined()) whole = torch::full({parameters[index].tensor.numel()}, 7.0F);
      at::Tensor values = piece.values;
      if (has_codes(kept)) {
        const int bucket = state.buckets.bucket_of(index);
        const int64_t begin = state.store.range_in_slice(index, state.store.rank()).begin;
        values = numbers_of(state.store, bucket, kept, Extent::slice).narrow(0, begin, values.numel());
      }
      whole.narrow(0, piece.begin, piece.values.numel()).copy_(values);
    });
  }
  for (const NamedTensor& other : state.unbucketed)
    whole_["exact of " + other.name] = other.tensor.to(at::kFloat).flatten().clone();
}

void check_same(CollectedState::Whole a, CollectedState::Whole b, bool same_precision) {
  if (!same_precision) {
    a.erase("exact of fixed");
    b.erase("exact of fixed");
  }
  REQUIRE(a.size() == b.size());
  for (const auto& [name, tensor] : a) {
    INFO(name);
    REQUIRE(b.contains(name));
    CHECK(at::equal(tensor, b.at(name)));
  }
}

}  // namespace zerorun::testing
