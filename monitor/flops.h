// Floating-point operations of operators, and sums of them. A multiplication with an addition counts two, as
// in the literature. Plain functions; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace zerorun {

using Sizes = std::span<const int64_t>;

/// An (m, k) by (k, n) product; `a` and `b` may have a batch in front, that of `a` counts.
int64_t product_flops(Sizes a, Sizes b);
/// A convolution with `weight` and `output`; of a transposed one pass its input as `output`.
int64_t convolution_flops(Sizes weight, Sizes output);
/// Both products of attention: (..., L, E) queries, (..., S, E) keys, (..., S, V) values, without regard to
/// masks. Its backward is 5 products of these shapes instead of 2, as kernels that recompute the scores do.
int64_t attention_flops(Sizes query, Sizes key, Sizes value);
int64_t attention_backward_flops(Sizes query, Sizes key, Sizes value);

enum class FlopPhase { forward, backward, recomputed };
inline constexpr int kFlopPhases = 3;

struct FlopTotals {
  struct Row {
    int64_t calls = 0;
    std::array<int64_t, kFlopPhases> flops{};
  };
  std::map<std::string, Row> operators;

  int64_t of(FlopPhase phase) const;
  /// Those of the model's own formula: forward and backward.
  int64_t model() const { return of(FlopPhase::forward) + of(FlopPhase::backward); }
  /// All that the rank has computed: recomputed forwards too.
  int64_t executed() const { return model() + of(FlopPhase::recomputed); }
};

/// What flops_profiler prints. `seconds`: of the step's forwards and backwards on the host's clock; 0: not
/// measured.
std::string describe(const FlopTotals& totals, int64_t step, int64_t parameters, double seconds,
                     bool detailed);

}  // namespace zerorun
