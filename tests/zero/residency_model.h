// Shared by the tests of Residency: one rank's parameters in buckets of one kind, with the Residency that
// gathers them.
#pragma once

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <exception>
#include <string>
#include <vector>

#include "tests/zero/rank_state.h"
#include "zero/residency.h"

namespace zerorun::testing {

/// How a bucket stores its values.
struct Kind {
  std::string name;
  bool partitioned;
  bool shares_memory;  // with the other ranks
  bool in_files = false;

  bool comes_and_goes() const { return partitioned && (!shares_memory || in_files); }
  /// Whether raw access throws outside of scopes.
  bool guarded() const { return partitioned || shares_memory; }
};
inline const std::vector<Kind> kKinds = {
    {"comes and goes", true, false}, {"whole", false, false},
    {"shared whole", false, true},   {"shared partitioned", true, true},
    {"in files", true, false, true}, {"in files, one buffer for all ranks", true, true, true}};

/// Three parameters, each in a bucket of its own: parameter p is in bucket 2 - p. On 2 and 3 ranks every
/// rank's slice has a part of parameter 0.
class Model {
 public:
  static std::vector<ParameterSpec> specs(const Kind& kind) {
    return {{{96}, kind.partitioned}, {{5, 7}, kind.partitioned}, {{64}, kind.partitioned}};
  }

  Model(const Kind& kind, Communicator& communicator, GatherLimits limits = {}, Dtype dtype = Dtype::fp32)
      : kind(kind),
        communicator(communicator),
        state(specs(kind), communicator, {.marked = true, .shared = kind.shares_memory, .dtype = dtype},
              /*bucket_numel=*/1, kind.in_files),
        leaves(state.leaves),
        residency(state.buckets, state.store, communicator, limits, [this] { return in_training; }) {}
  /// The barrier keeps each rank's memory alive while another rank reads it.
  ~Model() {
    if (std::uncaught_exceptions() == 0) communicator.barrier("the end")->wait();
  }

  static int bucket_of(int parameter) { return 2 - parameter; }
  at::Tensor given(int parameter) const { return given_values(specs(kind), parameter); }

  /// The same calls as in Engine::step(). The barrier ensures that no rank writes while another rank may
  /// still read.
  void start_update() {
    residency.finish_iteration();
    communicator.barrier("in place of the norm")->wait();
    for (int bucket = 0; bucket < state.store.count(); ++bucket) residency.start_update(bucket);
    state.buckets.masters().follow_writes();
  }
  /// Updates this rank's slices: adds `add` * (rank + 1) to each element.
  void finish_update(double add) {
    for (int bucket = 0; bucket < state.store.count(); ++bucket) {
      state.store.with_values(bucket, ValueUse::change, [&] {
        at::Tensor(state.buckets.shard(bucket)).add_(add * (communicator.rank() + 1));
      });
      residency.finish_update(bucket, communicator.world_size() > 1);
    }
  }
  void update(double add) {
    start_update();
    finish_update(add);
  }

  /// For each element of the parameter, the rank of its owner plus 1.
  at::Tensor owners(int parameter) const {
    const auto [bucket, offset] = state.store.layout().locations[parameter];
    const at::Tensor places = numbered(specs(kind)[parameter].sizes, static_cast<double>(offset));
    return places.div(static_cast<double>(state.store.layout(bucket).slice_numel), "floor") + 1;
  }

  /// Reads each parameter with one operator.
  void expect_values(const std::vector<at::Tensor>& expected, const std::string& what) const {
    for (int index = 0; index < 3; ++index) {
      expect_equal(leaves[index], expected[index], what + ", " + parameter_name(index));
    }
  }
  std::vector<at::Tensor> all_given() const { return {given(0), given(1), given(2)}; }

  /// Expects raw access to throw, unless the bucket is whole and not shared.
  void expect_guarded(int parameter, const std::string& what) const {
    const at::Tensor& leaf = leaves[parameter];
    if (!kind.guarded()) {
      (void)leaf.const_data_ptr();
      return;
    }
    const std::string remedy = kind.partitioned ? "not gathered now" : "engine.synchronize()";
    expect_throws<std::exception>([&] { (void)leaf.const_data_ptr(); }, {remedy}, what + ": reading");
    expect_throws<std::exception>([&] { (void)leaf.mutable_data_ptr(); }, {remedy}, what + ": writing");
  }

  bool in_training = true;
  Kind kind;
  Communicator& communicator;
  RankState state;
  std::vector<at::Tensor> leaves;
  Residency residency;
};

/// Runs `body(model)` for each kind of bucket on `lowest_ranks` to 3 ranks, and CHECKs that no rank throws.
template <typename Body>
void check_kinds(const std::vector<Kind>& kinds, int lowest_ranks, const Body& body,
                 GatherLimits limits = {}) {
  for (const Kind& kind : kinds) {
    for (int ranks = lowest_ranks; ranks <= 3; ++ranks) {
      INFO(kind.name);
      check_on_ranks(ranks, kind.shares_memory, [&](Communicator& communicator) {
        torch::NoGradGuard no_grad;
        Model model(kind, communicator, limits);
        body(model);
      });
    }
  }
}

/// A copy of the parameter's memory, read without an operator.
inline at::Tensor raw_values(const at::Tensor& leaf) {
  return at::from_blob(leaf.mutable_data_ptr(), leaf.sizes(), leaf.scalar_type()).clone();
}

}  // namespace zerorun::testing
