// Tests parameters in buckets: the program's own leaves get rank 0's values, each rank stores its part, and
// leaves remain usable or throw a clear error after the buckets are destroyed.
#include "zero/buckets.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <memory>

#include "base/error.h"
#include "tests/zero/rank_state.h"

namespace zerorun::testing {
namespace {

// Gathers the bucket's values from all ranks.
at::Tensor gather_values(const RankState& state, Communicator& communicator, int bucket) {
  const at::Tensor own = state.buckets.shard(bucket).clone();
  at::Tensor all = at::empty({own.numel() * communicator.world_size()}, own.options());
  communicator.all_gather(all, own, "values for the test")->wait();
  return all;
}

// Gathers the parameter's values from all ranks.
at::Tensor gather_parameter(const RankState& state, Communicator& communicator, int parameter) {
  const at::Tensor all = gather_values(state, communicator, state.buckets.bucket_of(parameter));
  return state.buckets.view(parameter, all);
}

const std::vector<ParameterSpec> kMixed = {{{5, 7}},        {{0}},  {{100}, true},       {{1}, true, 1},
                                           {{3}, false, 1}, {{70}}, {{9}, true, kFrozen}};

template <typename Body>
void check_worlds(const Body& body) {
  for (int ranks = 1; ranks <= 3; ++ranks) check_both_ways(ranks, body);
}

// A sum of squares. Autograd saves the parameter for its backward.
at::Tensor recorded_loss(const at::Tensor& leaf) {
  return leaf.square().sum();
}

}  // namespace

TEST_CASE("buckets: all ranks have rank 0's values, in the program's own leaves") {
  check_worlds([](Communicator& communicator) {
    RankState state(kMixed, communicator, {.marked = true, .shared = true}, 150);
    for (int index = 0; index < static_cast<int>(kMixed.size()); ++index) {
      const std::string name = parameter_name(index);
      const NamedParameter& parameter = state.buckets.parameters()[index];
      expect(parameter.name == name && parameter.tensor.is_same(state.leaves[index]),
             name + ": another leaf");
      expect(parameter.tensor.is_leaf(), name + " is no leaf any more");
      expect(parameter.tensor.requires_grad() == (kMixed[index].group != kFrozen), name + ": requires_grad");
      expect(parameter.tensor.sizes() == kMixed[index].sizes, name + ": other sizes");
      expect_equal(gather_parameter(state, communicator, index), given_values(kMixed, index), name);
    }
    communicator.barrier("the end")->wait();
  });
}

TEST_CASE("buckets: unmarked parameters are views into one plain tensor") {
  check_worlds([](Communicator& communicator) {
    const std::vector<ParameterSpec> specs = {{{5, 7}}, {{0}}, {{100}}, {{3}, false, kFrozen}};
    RankState state(specs, communicator, {}, 1000);
    expect(state.store.count() == 2 && state.buckets.trained_count() == 1, "number of buckets");
    expect(!state.buckets.marked() && !state.buckets.shared(0), "marked or shared");
    expect(state.buckets.trained().size() == 3, "number of trained parameters");
    expect(state.buckets.numel() == 135 && state.buckets.whole_numel() == 135, "number of elements");
    expect(state.buckets.label(0) == "bucket 0 (p2 and 2 more)", "label " + state.buckets.label(0));
    expect(state.buckets.label(1) == "bucket 1 (p3)", "label " + state.buckets.label(1));
    for (int index = 0; index < 4; ++index) {
      const std::string name = parameter_name(index);
      expect_equal(state.leaves[index], given_values(specs, index), name);
      const at::Tensor& flat = state.buckets.flat(state.buckets.bucket_of(index));
      expect(state.leaves[index].is_alias_of(flat), name + " lies elsewhere");
      // A write to the leaf is visible in the bucket.
      torch::NoGradGuard no_grad;
      state.leaves[index].neg_();
      expect_equal(state.buckets.view(index, flat), -given_values(specs, index), name + " in its bucket");
    }
  });
}

TEST_CASE("buckets: kinds of buckets") {
  check_worlds([](Communicator& communicator) {
    const std::vector<ParameterSpec> specs = {{{64}, true}, {{64}, false}};
    RankState alone(specs, communicator, {.marked = true, .shared = false});
    RankState together(specs, communicator, {.marked = true, .shared = true});
    // The option `shared` has no effect if the ranks cannot share memory.
    const bool shares = together.buckets.shared(0);
    auto expect_kind = [](const Buckets& buckets, int bucket, BucketKind expected, bool shared) {
      expect(buckets.kind(bucket) == expected, buckets.label(bucket) + " is of another kind");
      expect(buckets.shared(bucket) == shared, buckets.label(bucket) + " says another kind");
    };
    expect_kind(alone.buckets, 0, BucketKind::whole, false);
    expect_kind(alone.buckets, 1, BucketKind::partitioned, false);
    expect_kind(together.buckets, 0, shares ? BucketKind::whole_shared : BucketKind::whole, shares);
    expect_kind(together.buckets, 1, shares ? BucketKind::partitioned_shared : BucketKind::partitioned,
                shares);
    expect(alone.buckets.whole_numel() == 64 && alone.buckets.numel() == 128, "elements of whole buckets");
    expect(together.buckets.whole_numel() == (shares ? 0 : 64), "elements that this rank has alone");
    expect_throws<InternalError>([&] { (void)alone.buckets.flat(1); }, {"bucket 1 (p0)", "comes and goes"},
                                 "flat values of a bucket that comes and goes");
    communicator.barrier("the end")->wait();
  });
  for (const bool shares_memory : {false, true}) {
    check_on_ranks(2, shares_memory, [&](Communicator& communicator) {
      RankState state({{{64}}}, communicator, {.marked = true, .shared = true});
      expect(state.buckets.shared(0) == shares_memory, "shared memory");
      communicator.barrier("the end")->wait();
    });
  }
}

TEST_CASE("buckets: strides are kept") {
  check_worlds([](Communicator& communicator) {
    const at::Tensor transposed = numbered({4, 9}, 10).t();
    const at::Tensor channels_last = numbered({2, 5, 3, 4}, 100).contiguous(at::MemoryFormat::ChannelsLast);
    const std::vector<at::Tensor> given = {transposed, channels_last};
    const std::vector<ParameterSpec> specs = {{{9, 4}}, {{2, 5, 3, 4}}};
    for (const bool marked : {false, true}) {
      std::vector<at::Tensor> leaves;
      for (const at::Tensor& values : given) {
        leaves.push_back(at::empty_strided(values.sizes(), values.strides()).copy_(values));
        leaves.back().requires_grad_();
      }
      RankState state(specs, leaves, communicator, {.marked = marked, .shared = marked}, 1000);
      const at::Tensor all = gather_values(state, communicator, 0);
      for (int index = 0; index < 2; ++index) {
        const std::string name = parameter_name(index);
        expect(leaves[index].strides() == given[index].strides(), name + ": other strides");
        const at::Tensor view = state.buckets.view(index, all);
        expect(view.strides() == given[index].strides(), name + ": a view with other strides");
        expect_equal(view, given[index], name);
      }
      // piece() returns elements in memory order: for the transposed parameter, the order of the tensor
      // before t().
      expect_equal(state.buckets.piece(0, all), numbered({36}, 10), "piece of the transposed parameter");

      const at::Tensor same = at::empty_strided({9, 4}, {1, 9}).copy_(transposed * 2);
      const at::Tensor other = (transposed * 2).contiguous();
      expect(state.buckets.flattened(0, same).is_alias_of(same), "flattened: a copy without need");
      expect_equal(state.buckets.flattened(0, same), numbered({36}, 10) * 2, "flattened, same strides");
      expect_equal(state.buckets.flattened(0, other), numbered({36}, 10) * 2, "flattened, other strides");
      communicator.barrier("the end")->wait();
    }
  });
}

TEST_CASE("buckets: positions of parameters, and padding between them") {
  check_on_ranks(1, false, [](Communicator& communicator) {
    // The layout starts with the last parameter: p2 at 0, p1 at 32 and p0 at 96. The bucket is padded to 128
    // elements.
    RankState state({{{5}}, {{40}}, {{3}}}, communicator, {}, 1000);
    expect(state.store.layout(0).numel == 128, "length of the bucket");
    const std::vector<std::pair<int64_t, int>> places = {{0, 2},  {2, 2},  {3, 2},  {31, 2},  {32, 1},
                                                         {71, 1}, {95, 1}, {96, 0}, {100, 0}, {127, 0}};
    for (const auto& [offset, parameter] : places) {
      expect(state.buckets.parameter_at(0, offset) == parameter, "at " + std::to_string(offset));
    }
    const at::Tensor flat = at::ones({128});
    state.buckets.clear_padding(0, flat);
    const at::Tensor expected = at::zeros({128});
    for (const auto& [begin, numel] : std::vector<std::pair<int, int>>{{0, 3}, {32, 40}, {96, 5}}) {
      expected.narrow(0, begin, numel).fill_(1);
    }
    expect_equal(flat, expected, "padding");
    const at::Tensor numbers = numbered({128}, 0);
    expect_equal(state.buckets.view(1, numbers), numbered({40}, 32), "view of p1");
    expect_equal(state.buckets.piece(0, numbers), numbered({5}, 96), "piece of p0");
    // A view of a tensor that is itself a slice of a larger tensor.
    const at::Tensor part = numbered({200}, 0).narrow(0, 50, 128);
    expect_equal(state.buckets.view(1, part), numbered({40}, 82), "view of p1 in a part");
  });
}

TEST_CASE("buckets: a parameter that has moved out is found") {
  check_both_ways(2, [](Communicator& communicator) {
    for (const bool marked : {false, true}) {
      const std::vector<ParameterSpec> specs = {{{4, 4}}, {{4, 4}}, {{0}}};
      RankState state(specs, communicator, {.marked = marked, .shared = marked}, 1000);
      for (int index = 0; index < 3; ++index) expect(state.buckets.in_place(index), "before");
      state.leaves[0].set_data(at::zeros({4, 4}));
      expect(!state.buckets.in_place(0), "with memory of its own");
      expect(state.buckets.in_place(1), "the other one");
      // A leaf in the bucket's memory, but at the position of another parameter.
      state.leaves[0].set_data(state.leaves[1].detach());
      expect(!state.buckets.in_place(0), "in another's place");
      // A leaf at its own position, but with other strides.
      state.leaves[1].set_data(state.leaves[1].detach().t());
      expect(!state.buckets.in_place(1), "transposed");
      communicator.barrier("the end")->wait();
    }
  });
}

TEST_CASE("buckets: an update increments the version counters that autograd checks") {
  check_on_ranks(1, false, [](Communicator& communicator) {
    const std::vector<ParameterSpec> specs = {{{4}}, {{4}, false, kFrozen}};
    RankState state(specs, communicator, {}, 1000);
    const at::Tensor loss = recorded_loss(state.leaves[0]);
    const auto trained = state.leaves[0]._version();
    const auto frozen = state.leaves[1]._version();
    state.buckets.bump_versions();
    expect(state.leaves[0]._version() > trained, "the version of the trained parameter");
    expect(state.leaves[1]._version() == frozen, "the version of the frozen parameter");
    expect_throws<c10::Error>([&] { loss.backward(); }, {"modified by an inplace operation"}, "backward");
    recorded_loss(state.leaves[0]).backward();
    expect_equal(state.leaves[0].grad(), 2 * given_values(specs, 0), "a new graph");
  });
}

TEST_CASE("buckets: the error of raw access names the parameters of the storage") {
  check_both_ways(2, [](Communicator& communicator) {
    const std::vector<ParameterSpec> specs(10, {{8}, true});
    RankState three({{{64}, true}, {{64}, true}, {{64}, true}}, communicator, {.marked = true}, 1000);
    expect_throws<std::exception>([&] { (void)three.leaves[1].const_data_ptr(); },
                                  {"one of the parameters p2, p1, p0: this parameter is partitioned"},
                                  "three");
    RankState ten(specs, communicator, {.marked = true}, 1000);
    expect_throws<std::exception>([&] { (void)ten.leaves[0].const_data_ptr(); }, {", p2 and 2 more: "},
                                  "ten");
    communicator.barrier("the end")->wait();
  });
}

TEST_CASE("buckets: raw access to values that are not in memory throws an error with the remedy") {
  check_both_ways(2, [](Communicator& communicator) {
    RankState state({{{64}, true}, {{64}}}, communicator, {.marked = true, .shared = true});
    auto expect_no_access = [](const at::Tensor& leaf, const std::string& remedy) {
      expect_throws<std::exception>([&] { (void)leaf.const_data_ptr(); }, {remedy}, "const_data_ptr()");
      expect_throws<std::exception>([&] { (void)leaf.mutable_data_ptr(); }, {remedy}, "mutable_data_ptr()");
      expect_throws<std::exception>([&] { (void)leaf.data_ptr<float>(); }, {remedy}, "data_ptr<float>()");
    };
    expect_no_access(state.leaves[0], "GatheredParameters");
    expect_no_access(state.leaves[0], "parameter p0: this parameter is partitioned");
    expect_no_access(state.leaves[0], "not gathered now");
    if (state.buckets.shared(0)) {
      expect_no_access(state.leaves[1], "engine.synchronize()");
    } else {
      const float* values = state.leaves[1].const_data_ptr<float>();
      expect(values[0] == 2000 && values[63] == 2063, "values of the whole bucket");
    }
    communicator.barrier("the end")->wait();
  });
  check_on_ranks(1, false, [](Communicator& communicator) {
    expect_throws<InternalError>(
        [&] {
          RankState({{{64}, true}}, communicator, {.marked = false});
        },
        {"partitioned buckets are marked"}, "a partitioned bucket without a mark");
  });
}

TEST_CASE("buckets: values of parameters after the buckets are destroyed") {
  check_worlds([](Communicator& communicator) {
    const std::vector<ParameterSpec> specs = {{{64}}, {{64}, true}, {{64}}, {{64}}};
    for (const bool marked : {false, true}) {
      const std::vector<ParameterSpec> used = marked ? specs : std::vector<ParameterSpec>{{{64}}};
      auto state =
          std::make_unique<RankState>(used, communicator, BucketOptions{.marked = marked, .shared = true});
      const std::vector<at::Tensor> leaves = state->leaves;
      if (marked) {
        state->buckets.mark_incomplete(1);  // bucket of p2
        state->buckets.set_values_after_engine(
            0, at::full({96}, 7.0));  // bucket of p3; padding makes it up to 96 long
        communicator.barrier("no rank reads any more")->wait();
      }
      state.reset();

      // The values of whole buckets remain. From now on only the program's leaves own this memory.
      expect_equal(leaves[0], given_values(specs, 0), "a whole parameter");
      torch::NoGradGuard no_grad;
      leaves[0].add_(communicator.rank());
      communicator.barrier("after the write")->wait();
      expect_equal(leaves[0], given_values(specs, 0) + communicator.rank(), "written afterwards");
      expect(leaves[0].const_data_ptr<float>()[3] == 1003.0F + static_cast<float>(communicator.rank()),
             "raw access");
      if (!marked) continue;
      expect_throws<std::exception>([&] { (void)leaves[1].const_data_ptr(); },
                                    {"keep the engine as long as the model"},
                                    "raw access to a partitioned one");
      expect_throws<std::exception>([&] { (void)leaves[1].sum(); }, {"keep the engine as long as the model"},
                                    "an operator on a partitioned one");
      expect_throws<std::exception>([&] { (void)leaves[2].const_data_ptr(); }, {"incomplete: end the run"},
                                    "raw access to what was given up");
      expect_equal(leaves[3], at::full({64}, 7.0), "values to leave with");
    }
  });
}

}  // namespace zerorun::testing
