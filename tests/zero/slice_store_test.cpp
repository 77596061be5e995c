// Tests slice stores of several ranks in one thread: which part each rank stores, and that all ranks together
// hold every element of every parameter once.
#include "zero/slice_store.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/zero/rank_state.h"

namespace zerorun::testing {
namespace {

// The store of one of three ranks. Each rank owns 4 elements of the bucket. Parameter 0 is the first 5
// elements, parameter 1 is empty, and parameter 2 is the next 6 elements.
constexpr int kRanks = 3;
SliceStore three_ranks_store(int rank) {
  Layout layout{.locations = {{.bucket = 0, .offset = 0}, {.bucket = 0, .offset = 5}, {0, 5}},
                .buckets = {{.group = 0,
                             .partitioned = false,
                             .counted = true,
                             .share = Share::whole,
                             .numel = 12,
                             .slice_numel = 4,
                             .parameters = {0, 1, 2}}}};
  return {std::move(layout), {5, 0, 6}, rank, kRanks};
}

// 0, 1, 2 ...: each element's value is its position in the bucket.
at::Tensor positions(int64_t numel) {
  return at::arange(numel, at::kFloat);
}

std::vector<float> list(const at::Tensor& values) {
  const at::Tensor copy = values.to(at::kFloat).contiguous();
  return {copy.const_data_ptr<float>(), copy.const_data_ptr<float>() + copy.numel()};
}

// Copies to `values` the elements of `parameter` that `store` holds under `name`, and adds 1 to their counts
// in `times`.
void collect(const SliceStore& store, int parameter, const std::string& name, at::Tensor& values,
             at::Tensor& times) {
  store.for_each_piece_of(0, parameter, [&](const StatePiece& piece) {
    if (piece.state->name != name) return;
    REQUIRE(piece.values.dim() == 1);
    const int64_t numel = piece.values.numel();
    values.narrow(0, piece.begin, numel).copy_(piece.values);
    times.narrow(0, piece.begin, numel).add_(1);
  });
}

}  // namespace

TEST_CASE("slice store: put() stores tensors of a bucket or a slice, with this rank's slice") {
  SliceStore store = three_ranks_store(1);
  CHECK(store.count() == 1);
  CHECK(store.rank() == 1);
  CHECK(store.world_size() == 3);
  CHECK_FALSE(store.has(0, kValue));

  const at::Tensor whole = positions(12);
  const StateTensor& value = store.put(0, StateKind::value, kValue, Extent::bucket, whole, Home::shared);
  const at::Tensor part = positions(4) + 50;
  const StateTensor& moment = store.put(0, StateKind::moment, "exp_avg", Extent::slice, part);

  CHECK(store.has(0, kValue));
  CHECK(&store.at(0, kValue) == &value);
  CHECK(&store.at(0, "exp_avg") == &moment);
  CHECK(value.kind == StateKind::value);
  CHECK(value.name == "value");
  CHECK(value.extent == Extent::bucket);
  CHECK(value.home == Home::shared);
  CHECK(moment.kind == StateKind::moment);
  CHECK(moment.extent == Extent::slice);
  CHECK(moment.home == Home::device);
  CHECK(value.memory.is_same(whole));  // moved in, not copied
  CHECK(list(value.own) == std::vector<float>{4, 5, 6, 7});
  CHECK(moment.own.is_alias_of(part));
  CHECK(list(moment.own) == std::vector<float>{50, 51, 52, 53});

  CHECK(list(store.slice(0, kValue, 0)) == std::vector<float>{0, 1, 2, 3});
  CHECK(list(store.slice(0, kValue, 2)) == std::vector<float>{8, 9, 10, 11});
  CHECK(list(store.slice(0, "exp_avg", 1)) == std::vector<float>{50, 51, 52, 53});
  CHECK(list(store.slice_of(0, positions(12) + 100, 2)) == std::vector<float>{108, 109, 110, 111});
  store.slice(0, kValue, 2).fill_(-1);  // slice() returns a view
  CHECK(list(whole.narrow(0, 7, 2)) == std::vector<float>{7, -1});
}

TEST_CASE("slice store: mistakes are InternalErrors that name bucket and tensor") {
  SliceStore store = three_ranks_store(1);
  auto put = [&](const std::string& name, Extent extent, const at::Tensor& memory) {
    store.put(0, StateKind::moment, name, extent, memory);
  };
  put("exp_avg", Extent::slice, positions(4));
  auto check_throws = [](const auto& action, const std::vector<std::string>& parts) {
    CHECK_NOTHROW(expect_throws<InternalError>(action, parts, "a mistake"));
  };
  const std::vector<std::string> again = {"bucket 0", "\"exp_avg\"", "already"};
  check_throws([&] { put("exp_avg", Extent::slice, positions(4)); }, again);
  check_throws([&] { put("exp_avg", Extent::bucket, positions(12)); }, again);

  const std::vector<std::string> length = {"bucket 0", "\"max_exp_avg\"", "length"};
  check_throws([&] { put("max_exp_avg", Extent::slice, positions(12)); }, length);
  check_throws([&] { put("max_exp_avg", Extent::bucket, positions(4)); }, length);
  check_throws([&] { put("max_exp_avg", Extent::slice, positions(4).view({2, 2})); }, length);
  CHECK_FALSE(store.has(0, "max_exp_avg"));

  check_throws([&] { store.at(0, "step"); }, {"bucket 0", "\"step\""});
  check_throws([&] { store.slice(0, "step", 1); }, {"bucket 0", "\"step\""});
  check_throws([&] { store.slice(0, "exp_avg", 2); }, {"\"exp_avg\"", "this rank's slice"});
}

TEST_CASE("slice store: the result of put() stays valid when more tensors are added") {
  SliceStore store = three_ranks_store(0);
  const StateTensor& first = store.put(0, StateKind::value, kValue, Extent::bucket, positions(12));
  const at::Tensor& own = first.own;
  for (int number = 0; number < 200; ++number) {
    store.put(0, StateKind::moment, "moment " + std::to_string(number), Extent::slice, positions(4));
  }
  CHECK(&store.at(0, kValue) == &first);
  CHECK(first.name == "value");
  CHECK(list(own) == std::vector<float>{0, 1, 2, 3});
  std::vector<std::string> names;
  store.for_each([&](int bucket, const StateTensor& state) {
    CHECK(bucket == 0);
    names.push_back(state.name);
  });
  REQUIRE(names.size() == 201);
  CHECK(names[0] == "value");
  CHECK(names[200] == "moment 199");
}

TEST_CASE("slice store: ranges and pieces of parameters that span slices, by hand") {
  struct Expected {
    int parameter;
    int rank;
    Range range;
    int64_t begin;  // position of the piece in the parameter
  };
  // Rank 0 has elements 0 to 3 of the bucket, rank 1 elements 4 to 7, rank 2 elements from 8.
  const std::vector<Expected> all = {{0, 0, {0, 4}, 0}, {0, 1, {0, 1}, 4}, {0, 2, {0, 0}, 0},
                                     {1, 0, {0, 0}, 0}, {1, 1, {0, 0}, 0}, {1, 2, {0, 0}, 0},
                                     {2, 0, {0, 0}, 0}, {2, 1, {1, 3}, 0}, {2, 2, {0, 3}, 3}};
  for (const auto& [parameter, rank, range, begin] : all) {
    INFO("parameter " << parameter << ", rank " << rank);
    SliceStore store = three_ranks_store(rank);
    store.put(0, StateKind::value, kValue, Extent::bucket, positions(12));
    store.put(0, StateKind::moment, "exp_avg", Extent::slice, positions(4) + 4 * rank);
    CHECK(store.range_in_slice(parameter, rank).numel == range.numel);
    if (range.numel > 0) CHECK(store.range_in_slice(parameter, rank).begin == range.begin);
    // Any rank can compute the range of any other rank.
    CHECK(three_ranks_store(0).range_in_slice(parameter, rank).numel == range.numel);

    int pieces = 0;
    store.for_each_piece(parameter, [&](const StatePiece& piece) {
      ++pieces;
      CHECK(piece.begin == begin);
      CHECK(piece.values.numel() == range.numel);
      const int64_t offset = parameter == 0 ? 0 : 5;
      CHECK(list(piece.values) == list(positions(range.numel) + (offset + begin)));
      CHECK(piece.state == &store.at(0, piece.state->name));
    });
    CHECK(pieces == (range.numel > 0 ? 2 : 0));  // the value and the moment
  }
}

TEST_CASE("slice store: the pieces of all ranks have every element of every parameter once") {
  const std::vector<ParameterSpec> specs = {{{7}}, {{0}}, {{129}},    {{1}}, {{3, 11}},
                                            {{5}}, {{0}}, {{64, 16}}, {{2}}, {{31}, true}};
  for (const int64_t alignment : {1, 4, 32}) {
    for (const int64_t bucket_numel : {1, 50, 200, 100'000}) {
      for (int ranks = 1; ranks <= 4; ++ranks) {
        INFO(ranks << " ranks, alignment " << alignment << ", buckets of " << bucket_numel);
        const Layout layout = make_layout_of(specs, ranks, alignment, bucket_numel);
        // Padding between parameters is NaN. No piece may contain NaN.
        std::vector<at::Tensor> flats;
        for (const BucketLayout& bucket : layout.buckets) {
          flats.push_back(at::full({bucket.numel}, std::nan("")));
        }
        for (size_t index = 0; index < specs.size(); ++index) {
          const at::Tensor values = given_values(specs, static_cast<int>(index)).flatten();
          const auto [bucket, offset] = layout.locations[index];
          flats[bucket].narrow(0, offset, values.numel()).copy_(values);
        }
        std::vector<SliceStore> stores;
        for (int rank = 0; rank < ranks; ++rank) {
          SliceStore& store = stores.emplace_back(layout, numels_of(specs), rank, ranks);
          for (int bucket = 0; bucket < store.count(); ++bucket) {
            const int64_t slice = store.layout(bucket).slice_numel;
            store.put(bucket, StateKind::value, kValue, Extent::bucket, flats[bucket]);
            store.put(bucket, StateKind::master, kMaster, Extent::slice,
                      flats[bucket].narrow(0, rank * slice, slice).clone());
          }
        }
        for (size_t index = 0; index < specs.size(); ++index) {
          const at::Tensor given = given_values(specs, static_cast<int>(index)).flatten();
          for (const char* name : {kValue, kMaster}) {
            at::Tensor values = at::zeros_like(given);
            at::Tensor times = at::zeros_like(given);
            for (const SliceStore& store : stores) {
              collect(store, static_cast<int>(index), name, values, times);
            }
            CHECK(at::equal(times, at::ones_like(given)));
            CHECK(at::equal(values, given));
          }
        }
      }
    }
  }
}

TEST_CASE("slice store: a rank counts only its part of shared memory") {
  SliceStore store = three_ranks_store(2);
  const auto bytes = [&](const char* name, Extent extent, const at::Tensor& memory, Home home) {
    return store.bytes(store.put(0, StateKind::value, name, extent, memory, home));
  };
  CHECK(bytes("shared", Extent::bucket, positions(12), Home::shared) == 16);
  CHECK(bytes("whole", Extent::bucket, positions(12), Home::device) == 48);
  CHECK(bytes("slice", Extent::slice, positions(4), Home::device) == 16);
  CHECK(bytes("narrow", Extent::bucket, positions(12).to(at::kBFloat16), Home::shared) == 8);
}

// The same queries of the store work whether ranks share memory or not.
TEST_CASE("slice store: Buckets record extent and home of their values") {
  for (const bool shares_memory : {false, true}) {
    check_on_ranks(2, shares_memory, [&](Communicator& communicator) {
      const std::vector<ParameterSpec> specs = {{{64}, false}, {{128}, true}};
      RankState state(specs, communicator, {.marked = true, .shared = true});
      // Bucket 0 holds the last parameter.
      const StateTensor& partitioned = state.store.at(0, kValue);
      const StateTensor& whole = state.store.at(1, kValue);
      const Home home = shares_memory ? Home::shared : Home::device;
      expect(whole.extent == Extent::bucket && whole.home == home, "the whole bucket");
      expect(
          partitioned.extent == (shares_memory ? Extent::bucket : Extent::slice) && partitioned.home == home,
          "the partitioned bucket");
      const int rank = communicator.rank();
      expect_equal(whole.own, numbered({64}, 1000).narrow(0, 32 * rank, 32), "own slice of the whole one");
      expect_equal(partitioned.own, numbered({128}, 2000).narrow(0, 64 * rank, 64), "of the other");
      expect(state.store.bytes(whole) == (shares_memory ? 128 : 256), "bytes of the whole bucket");
      expect(state.store.bytes(partitioned) == 256, "bytes of the partitioned bucket");
      communicator.barrier("the end")->wait();
    });
  }
}

}  // namespace zerorun::testing
