// Tests sums in rank order: 16-bit values are summed in float32 and rounded once. The expected values are
// computed in float64 or by hand.
#include "comm/rank_order_sum.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <random>

namespace zerorun {
namespace {

using Catch::Matchers::Contains;

at::Tensor sum_of(const std::vector<at::Tensor>& slices, const at::Tensor& output) {
  std::vector<const void*> pointers;
  for (const at::Tensor& slice : slices) pointers.push_back(slice.const_data_ptr());
  sum_in_rank_order(output, pointers);
  return output;
}

// Values between -1 and 1 whose sums need more bits than the dtype has.
std::vector<at::Tensor> random_slices(int ranks, int64_t numel, at::ScalarType dtype) {
  std::mt19937_64 random(static_cast<uint64_t>(numel * 10 + ranks));
  std::vector<at::Tensor> slices;
  for (int rank = 0; rank < ranks; ++rank) {
    at::Tensor slice = at::empty({numel});
    float* values = slice.mutable_data_ptr<float>();
    for (int64_t i = 0; i < numel; ++i) values[i] = static_cast<float>(random() % 200001) * 1e-5F - 1;
    slices.push_back(slice.to(dtype));
  }
  return slices;
}

// Computes each partial sum in float64, where it is exact, and rounds it once to float32.
at::Tensor expected(const std::vector<at::Tensor>& slices) {
  at::Tensor total = slices[0].to(at::kFloat);
  for (size_t rank = 1; rank < slices.size(); ++rank) {
    total = total.to(at::kDouble).add(slices[rank].to(at::kDouble)).to(at::kFloat);
  }
  return total.to(slices[0].scalar_type());
}

}  // namespace

TEST_CASE("sum in rank order: 16-bit values are added in float32 and rounded once") {
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (int ranks : {1, 2, 3, 5}) {
      for (int64_t numel : {0, 1, 7, 2047, 2048, 2049, 5000}) {
        const std::vector<at::Tensor> slices = random_slices(ranks, numel, dtype);
        const at::Tensor wanted = expected(slices);
        INFO(dtype << ", " << ranks << " ranks, " << numel << " values");
        REQUIRE(at::equal(sum_of(slices, at::empty({numel}, dtype)), wanted));
        for (int in_place = 0; in_place < ranks; ++in_place) {
          const std::vector<at::Tensor> again = random_slices(ranks, numel, dtype);
          REQUIRE(at::equal(sum_of(again, again[in_place]), wanted));
        }
      }
    }
  }
}

TEST_CASE("sum in rank order: outputs of any size and alignment, also those written past the caches") {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong}) {
    for (int ranks : {1, 2, 3}) {
      for (int64_t numel : {0, 1, 63, 2048, 5001, (9 << 20) / 4 + 37}) {
        for (int64_t begin : {0, 1}) {  // offset in elements; with 1 the output is aligned to its dtype only
          std::vector<at::Tensor> slices = random_slices(ranks, numel, at::kFloat);
          for (at::Tensor& slice : slices) slice = (dtype == at::kLong ? slice * 1000 : slice).to(dtype);
          at::Tensor wanted = slices[0].clone();
          for (int rank = 1; rank < ranks; ++rank) wanted = wanted + slices[rank];
          INFO(dtype << ", " << ranks << " ranks, " << numel << " values, from " << begin);
          at::Tensor output = at::empty({numel + 1}, dtype).narrow(0, begin, numel);
          REQUIRE(at::equal(sum_of(slices, output), wanted));
          REQUIRE(at::equal(sum_of(slices, slices[ranks - 1]), wanted));
        }
      }
    }
  }
}

TEST_CASE("sum in rank order: small addends are not lost, compared with sums computed by hand") {
  // bf16 values above 256 are 2 apart: a sum rounded after each rank would stay at 256.
  const at::Tensor one = at::ones({3}, at::kBFloat16);
  CHECK(sum_of({at::full({3}, 256, at::kBFloat16), one, one, one, one}, at::empty({3}, at::kBFloat16))[1]
            .item<float>() == 260);
  // fp16 values above 2048 are 2 apart.
  const at::Tensor half = at::ones({3}, at::kHalf);
  CHECK(sum_of({at::full({3}, 2048, at::kHalf), half, half}, at::empty({3}, at::kHalf))[2].item<float>() ==
        2050);
  // The largest fp16 value is 65504: the partial sum of the first two ranks exceeds it.
  const at::Tensor large = at::full({3}, 60000, at::kHalf);
  CHECK(sum_of({large, large, -large}, at::empty({3}, at::kHalf))[0].item<float>() == 60000);
  CHECK(at::isinf(sum_of({large, large}, at::empty({3}, at::kHalf))).all().item<bool>());
}

TEST_CASE("sum in rank order: other dtypes are refused by name") {
  at::Tensor bytes = at::ones({4}, at::kByte);
  CHECK_THROWS_WITH(sum_of({bytes}, bytes), Contains("Byte"));
}

}  // namespace zerorun
