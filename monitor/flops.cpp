#include "monitor/flops.h"

namespace zerorun {
namespace {

int64_t product(Sizes sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
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

}  // namespace zerorun
