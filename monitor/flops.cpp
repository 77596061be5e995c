#include "monitor/flops.h"

#include <cstdio>

namespace zerorun {
namespace {

int64_t product(Sizes sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

double giga(int64_t flops) {
  return static_cast<double>(flops) / 1e9;
}

}  // namespace

int64_t product_flops(Sizes a, Sizes b) {
  return a.empty() || b.empty() ? 0 : 2 * product(a) * b.back();
}

int64_t convolution_flops(Sizes weight, Sizes output) {
  // Of each output element: input channels of its group times the kernel's elements.
  if (weight.empty() || output.size() < 2 || weight[0] == 0) return 0;
  return 2 * product(output) * (product(weight) / weight[0]);
}

int64_t attention_flops(Sizes query, Sizes key, Sizes value) {
  if (query.size() < 2 || key.size() < 2 || value.empty()) return 0;
  const int64_t scores = product(query) / query.back() * key[key.size() - 2];
  return 2 * scores * (query.back() + value.back());
}

int64_t attention_backward_flops(Sizes query, Sizes key, Sizes value) {
  if (query.size() < 2 || key.size() < 2 || value.empty()) return 0;
  const int64_t scores = product(query) / query.back() * key[key.size() - 2];
  // The scores again, and gradients of queries and keys; gradients of values and of the scores.
  return 2 * scores * (3 * query.back() + 2 * value.back());
}

int64_t FlopTotals::of(FlopPhase phase) const {
  int64_t sum = 0;
  for (const auto& [name, row] : operators) sum += row.flops[static_cast<size_t>(phase)];
  return sum;
}

std::string describe(const FlopTotals& totals, int64_t step, int64_t parameters, double seconds,
                     bool detailed) {
  char line[240];
  std::snprintf(line, sizeof line,
                "floating-point operations of step %lld on rank 0: model %.6f GFLOP (forward %.6f, backward "
                "%.6f), executed %.6f GFLOP (recomputed %.6f); %lld parameters",
                static_cast<long long>(step), giga(totals.model()), giga(totals.of(FlopPhase::forward)),
                giga(totals.of(FlopPhase::backward)), giga(totals.executed()),
                giga(totals.of(FlopPhase::recomputed)), static_cast<long long>(parameters));
  std::string text = line;
  if (seconds > 0) {
    std::snprintf(line, sizeof line, "; in %.3f s, model %.3f and executed %.3f GFLOP/s", seconds,
                  giga(totals.model()) / seconds, giga(totals.executed()) / seconds);
    text += line;
  }
  if (!detailed) return text;
  std::snprintf(line, sizeof line, "\n%-48s %10s %16s %16s %16s", "operator", "calls", "forward GFLOP",
                "backward", "recomputed");
  text += line;
  for (const auto& [name, row] : totals.operators) {
    std::snprintf(line, sizeof line, "\n%-48s %10lld %16.6f %16.6f %16.6f", name.c_str(),
                  static_cast<long long>(row.calls), giga(row.flops[0]), giga(row.flops[1]),
                  giga(row.flops[2]));
    text += line;
  }
  return text;
}

}  // namespace zerorun
