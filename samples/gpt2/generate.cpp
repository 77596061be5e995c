#include "samples/gpt2/generate.h"

#include <zerorun/program.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace samples {
namespace {

// Draws an index with probability softmax(logits / temperature) among the top k; `uniform` lies in [0, 1).
int32_t draw(std::span<const double> logits, const GenerateOptions& options, double uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto by_logit = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const int32_t best = *std::min_element(order.begin(), order.end(), by_logit);
  if (options.temperature == 0) return best;
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) {
    std::nth_element(order.begin(), order.begin() + options.top_k - 1, order.end(), by_logit);
    order.resize(static_cast<size_t>(options.top_k));
    std::sort(order.begin(), order.end());
  }
  std::vector<double> cumulative;
  double sum = 0.0;
  for (const int32_t token : order)
    cumulative.push_back(sum += std::exp((logits[token] - logits[best]) / options.temperature));
  const auto drawn = std::upper_bound(cumulative.begin(), cumulative.end() - 1, uniform * sum);
  return order[static_cast<size_t>(drawn - cumulative.begin())];
}

}  // namespace

std::vector<int32_t> generate(Gpt2& model, std::span<const int32_t> prompt, int64_t vocab,
                              const GenerateOptions& options) {
  ZR_CHECK(!prompt.empty(), "a prompt");
  at::NoGradGuard no_grad;
  const c10::Device device = model->parameters().front().device();
  const int64_t positions = model->options().positions;
  std::mt19937_64 generator(options.seed);
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  KeyValueCache cache;
  // The number of tokens at the end of `tokens` that are not in the cache.
  auto fresh = std::min(static_cast<int64_t>(tokens.size()), positions);
  for (int64_t i = 0; i < options.count; ++i) {
    if (cache.length + fresh > positions) {
      cache.length = 0;
      fresh = std::max<int64_t>(positions / 2, 1);
    }
    at::Tensor context = at::from_blob(&*(tokens.end() - fresh), {1, fresh}, at::kInt);
    at::Tensor logits = model->next_logits(context.to(device, at::kLong), cache)
                            .select(0, 0)
                            .slice(0, 0, vocab)
                            .to(at::kCPU, at::kDouble)
                            .contiguous();
    const double uniform = static_cast<double>(generator() >> 11) * 0x1p-53;
    tokens.push_back(
        draw({logits.const_data_ptr<double>(), static_cast<size_t>(logits.numel())}, options, uniform));
    fresh = 1;
  }
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
  return tokens;
}

}  // namespace samples
