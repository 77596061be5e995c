// Tests of the counts of floating-point operations, and of their table.
#include "monitor/flops.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace zerorun::testing {
namespace {

using S = std::vector<int64_t>;

}  // namespace

TEST_CASE("Products, convolutions and attention count a multiplication and an addition as two") {
  CHECK(product_flops(S{3, 5}, S{5, 7}) == 2 * 3 * 5 * 7);
  CHECK(product_flops(S{4, 3, 5}, S{4, 5, 7}) == 4 * 2 * 3 * 5 * 7);
  CHECK(product_flops(S{}, S{5, 7}) == 0);
  CHECK(product_flops(S{0, 5}, S{5, 7}) == 0);
  // 6 output channels from 4 / 2 input channels of a group, a 3 x 3 kernel, on 2 x 10 x 10 places.
  CHECK(convolution_flops(S{6, 2, 3, 3}, S{2, 6, 10, 10}) == 2 * (2 * 6 * 10 * 10) * (2 * 3 * 3));
  CHECK(attention_flops(S{2, 4, 8, 16}, S{2, 4, 12, 16}, S{2, 4, 12, 32}) == 2 * 2 * 4 * 8 * 12 * (16 + 32));
  CHECK(attention_backward_flops(S{2, 4, 8, 16}, S{2, 4, 8, 16}, S{2, 4, 8, 16}) ==
        attention_flops(S{2, 4, 8, 16}, S{2, 4, 8, 16}, S{2, 4, 8, 16}) * 5 / 2);
}

TEST_CASE("The report names model and executed operations apart") {
  FlopTotals totals;
  totals.operators["aten::mm"] = {.calls = 3, .flops = {2'000'000'000, 4'000'000'000, 1'000'000'000}};
  CHECK(totals.model() == 6'000'000'000);
  CHECK(totals.executed() == 7'000'000'000);
  const std::string text = describe(totals, 2, 100, 2, true);
  CHECK_THAT(text,
             Catch::Contains("of step 2 on rank 0: model 6.000000 GFLOP") &&
                 Catch::Contains("executed 7.000000 GFLOP (recomputed 1.000000)") &&
                 Catch::Contains("100 parameters; in 2.000 s, model 3.000 and executed 3.500 GFLOP/s") &&
                 Catch::Contains("\naten::mm "));
  CHECK(describe(totals, 2, 100, 0, false).find('\n') == std::string::npos);
}

}  // namespace zerorun::testing
