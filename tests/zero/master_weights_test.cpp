// Tests the fp32 master weights of 16-bit buckets, and how they follow the program's writes to parameters.
#include <torch/torch.h>

#include <catch2/catch.hpp>

#include "device/dtypes.h"
#include "tests/zero/rank_state.h"
#include "zero/buckets.h"

namespace zerorun::testing {
namespace {

// Parameter sizes. The values are thirds, which neither 16-bit type represents exactly.
const std::vector<ParameterSpec> kSpecs = {{{5, 7}}, {{130}}, {{3}, false, kFrozen}};

at::Tensor thirds(int index, int rank) {
  return (numbered(kSpecs[index].sizes, 1) + rank) / 3;
}

std::vector<at::Tensor> leaves_of(int rank) {
  std::vector<at::Tensor> leaves;
  for (int index = 0; index < 3; ++index) leaves.push_back(thirds(index, rank).requires_grad_(index < 2));
  return leaves;
}

// The values after LibTorch's rounding to `dtype`.
at::Tensor rounded(const at::Tensor& values, Dtype dtype) {
  return values.to(scalar_type(dtype)).to(at::kFloat);
}

struct Precision {
  Dtype dtype;
  bool from_fp32;
  bool whole;
};

template <typename Body>
void check_precisions(bool marked, const Body& body) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    for (const bool from_fp32 : {false, true}) {
      for (const bool whole : {false, true}) {
        for (int ranks = 1; ranks <= 3; ++ranks) {
          INFO(name_of(dtype) << (from_fp32 ? ", from fp32" : "") << (whole ? ", whole" : ""));
          check_both_ways(ranks, [&](Communicator& communicator) {
            const BucketOptions options{.marked = marked,
                                        .shared = marked,
                                        .dtype = dtype,
                                        .master_from_fp32 = from_fp32,
                                        .whole_master = whole};
            RankState state(kSpecs, leaves_of(communicator.rank()), communicator, options, 64);
            body(communicator, state, Precision{dtype, from_fp32, whole});
            communicator.barrier("the end")->wait();
          });
        }
      }
    }
  }
}

// Gathers the parameter's master weights from all ranks.
at::Tensor master_of(Communicator& communicator, const RankState& state, int parameter) {
  const int bucket = state.buckets.bucket_of(parameter);
  const StateTensor& master = state.store.at(bucket, kMaster);
  at::Tensor all = at::empty({state.store.layout(bucket).numel});
  communicator.all_gather(all, master.own.clone(), "master weights for the test")->wait();
  return state.buckets.view(parameter, all);
}

}  // namespace

TEST_CASE("master weights: start from rounded values, or from the values as given") {
  check_precisions(true, [](Communicator& communicator, RankState& state, const Precision& precision) {
    for (int index = 0; index < 3; ++index) {
      const std::string name = parameter_name(index);
      const int bucket = state.buckets.bucket_of(index);
      const at::Tensor given = thirds(index, 0);
      const at::Tensor in_16_bits = rounded(given, precision.dtype);
      expect(!at::equal(in_16_bits, given), "the test needs values that are rounded");
      at::Tensor all = at::empty({state.store.layout(bucket).numel}, scalar_type(precision.dtype));
      communicator.all_gather(all, state.buckets.shard(bucket).clone(), "values for the test")->wait();
      expect_equal(state.buckets.view(index, all), given.to(scalar_type(precision.dtype)), name);
      expect(state.leaves[index].scalar_type() == scalar_type(precision.dtype), name + ": type of the leaf");

      const bool trained = kSpecs[index].group != kFrozen;
      expect(state.buckets.masters().has(bucket) == trained, name + ": has master weights");
      expect(state.store.has(bucket, kMaster) == trained, name + ": keeps master weights");
      if (!trained) continue;
      const StateTensor& master = state.store.at(bucket, kMaster);
      const at::Tensor expected = precision.from_fp32 ? given : in_16_bits;
      expect_equal(master_of(communicator, state, index), expected, "master weights of " + name);
      expect(master.extent == (precision.whole ? Extent::bucket : Extent::slice), "what is kept of " + name);
      if (precision.whole) expect_equal(state.buckets.view(index, master.memory), expected, "all of " + name);
    }
  });
}

TEST_CASE("master weights: fp32 parameters have none") {
  check_both_ways(2, [](Communicator& communicator) {
    RankState state(kSpecs, leaves_of(communicator.rank()), communicator,
                    {.marked = true, .shared = true, .master_from_fp32 = true, .whole_master = true}, 64);
    for (int bucket = 0; bucket < state.store.count(); ++bucket) {
      expect(!state.buckets.masters().has(bucket) && !state.store.has(bucket, kMaster), "master weights");
    }
    communicator.barrier("the end")->wait();
  });
}

TEST_CASE("master weights: written elements are taken over, and the others keep their precision") {
  check_precisions(false, [](Communicator& communicator, RankState& state, const Precision& precision) {
    torch::NoGradGuard no_grad;
    const at::Tensor start = precision.from_fp32 ? thirds(1, 0) : rounded(thirds(1, 0), precision.dtype);
    // Writes every third element, in all slices. Element 9 is then set back to the value that it already had.
    at::Tensor leaf = state.leaves[1];
    leaf.slice(0, 0, 130, 3).fill_(1.0 / 7);
    leaf.slice(0, 9, 10).copy_(thirds(1, 0).slice(0, 9, 10));
    at::Tensor expected = start.clone();
    expected.slice(0, 0, 130, 3).copy_(rounded(at::full({44}, 1.0 / 7), precision.dtype));
    expected.slice(0, 9, 10).copy_(start.slice(0, 9, 10));

    state.buckets.masters().follow_writes();
    expect_equal(master_of(communicator, state, 1), start, "before anybody has told of the write");
    state.buckets.masters().note_written(state.buckets.bucket_of(1));
    state.buckets.masters().follow_writes();
    expect_equal(master_of(communicator, state, 1), expected, "after the write");
    expect_equal(master_of(communicator, state, 0),
                 precision.from_fp32 ? thirds(0, 0) : rounded(thirds(0, 0), precision.dtype),
                 "of what was not written");
    if (precision.whole) {
      const at::Tensor& memory = state.store.at(state.buckets.bucket_of(1), kMaster).memory;
      expect_equal(state.buckets.view(1, memory), expected, "all of it after the write");
    }

    // follow_writes() applies a noted write once. This second write is not noted yet.
    leaf.fill_(2);
    state.buckets.masters().follow_writes();
    expect_equal(master_of(communicator, state, 1), expected, "nobody has told of the second write");
    // A noted write to a frozen parameter has no effect: frozen parameters have no master weights.
    state.leaves[2].fill_(5);
    state.buckets.masters().note_written(state.buckets.bucket_of(2));
    state.buckets.masters().follow_writes();
    state.buckets.masters().note_written(state.buckets.bucket_of(1));
    state.buckets.masters().follow_writes();
    expect_equal(master_of(communicator, state, 1), at::full({130}, 2.0), "the second write");
  });
}

}  // namespace zerorun::testing
