// Floating-point operations of operators, and sums of them. A multiplication with an addition counts two, as
// in the literature. Plain functions; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

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

using FlopsByPhase = std::array<int64_t, kFlopPhases>;

/// Operations of a module, without those of modules inside of it.
struct ModuleFlops {
  std::string path = {};  // "h.0.attn"; empty: the model
  int64_t parameters = 0;
  FlopsByPhase flops = {};
};

struct FlopTotals {
  struct Row {
    int64_t calls = 0;
    FlopsByPhase flops{};
  };
  std::map<std::string, Row> operators;
  std::vector<ModuleFlops> modules = {};  // each before the modules inside of it; empty: not asked for

  int64_t of(FlopPhase phase) const;
  /// Those of the model's own formula: forward and backward.
  int64_t model() const { return of(FlopPhase::forward) + of(FlopPhase::backward); }
  /// All that the rank has computed: recomputed forwards too.
  int64_t executed() const { return model() + of(FlopPhase::recomputed); }
};

}  // namespace zerorun
