// Tests of the counts of floating-point operations, and of their table.
#include "monitor/flops.h"

#include <catch2/catch.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "monitor/flops_report.h"

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
  const std::string text = describe(totals, 2, 100, 2, {});
  CHECK_THAT(text,
             Catch::Contains("of step 2 on rank 0: model 6.000000 GFLOP") &&
                 Catch::Contains("executed 7.000000 GFLOP (recomputed 1.000000)") &&
                 Catch::Contains("100 parameters; in 2.000 s, model 3.000 and executed 3.500 GFLOP/s") &&
                 Catch::Contains("\naten::mm "));
  CHECK(describe(totals, 2, 100, 0, {.detailed = false}).find('\n') == std::string::npos);
}

TEST_CASE("Rows of modules have what is inside of them, down to the depth that is asked for") {
  FlopTotals totals;
  totals.modules = {{.path = "", .parameters = 1, .flops = {1'000'000, 2'000'000, 0}},
                    {.path = "h"},
                    {.path = "h.0", .parameters = 20, .flops = {3'000'000, 6'000'000, 3'000'000}},
                    {.path = "h.0.attn", .parameters = 5, .flops = {4'000'000, 8'000'000, 4'000'000}},
                    {.path = "h.1", .parameters = 30, .flops = {5'000'000, 10'000'000, 5'000'000}},
                    {.path = "wte", .parameters = 8}};
  const auto rows = [&](const FlopsProfilerConfig& config) {
    const std::string text = describe(totals, 2, 64, 0, config);
    std::istringstream stream(text.substr(text.find("\nmodule ") + 1));
    std::vector<std::string> found;
    for (std::string line; std::getline(stream, line);) {
      std::istringstream words(line);
      std::string row;
      for (std::string word; words >> word;) row += (row.empty() ? "" : " ") + word;
      found.push_back(row);
    }
    return found;
  };
  const std::vector<std::string> all = rows({.top_modules = 2});
  CHECK(all == std::vector<std::string>{
                   "module parameters forward GFLOP backward recomputed",
                   "(the model) 64 0.013000 0.026000 0.012000", "h 55 0.012000 0.024000 0.012000",
                   "h.0 25 0.007000 0.014000 0.007000", "h.0.attn 5 0.004000 0.008000 0.004000",
                   "h.1 30 0.005000 0.010000 0.005000", "wte 8 0.000000 0.000000 0.000000",
                   "most model GFLOP at depth 1: h 0.036000 (92.3 %), wte 0.000000 (0.0 %)",
                   "most model GFLOP at depth 2: h.0 0.021000 (53.8 %), h.1 0.015000 (38.5 %)",
                   "most model GFLOP at depth 3: h.0.attn 0.012000 (30.8 %)"});
  const std::vector<std::string> shallow = rows({.module_depth = 1, .top_modules = 0});
  CHECK(shallow == std::vector<std::string>{all[0], all[1], all[2], all[6]});
}

}  // namespace zerorun::testing
