#include "samples/gpt2/generate.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace zerorun {
namespace {

constexpr int64_t kBytes = 256;
constexpr double kTemperature = 0.8;

// Draws an index with probability softmax(logits / temperature); `uniform` lies in [0, 1).
int64_t draw(const std::vector<double>& logits, double uniform) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> cumulative;
  double sum = 0.0;
  for (const double logit : logits) cumulative.push_back(sum += std::exp((logit - largest) / kTemperature));
  const auto drawn = std::upper_bound(cumulative.begin(), cumulative.end() - 1, uniform * sum);
  return drawn - cumulative.begin();
}

}  // namespace

std::string generate(Gpt2& model, const std::string& prompt, int64_t count, uint64_t seed) {
  at::NoGradGuard no_grad;
  const c10::Device device = model->parameters().front().device();
  std::mt19937_64 generator(seed);
  std::vector<int64_t> tokens;
  for (const char character : prompt) tokens.push_back(static_cast<unsigned char>(character));
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    const auto length = std::min(static_cast<int64_t>(tokens.size()), model->options().positions);
    at::Tensor context = at::from_blob(&*(tokens.end() - length), {1, length}, at::kLong);
    at::Tensor last = model->forward(context.to(device))
                          .select(1, length - 1)
                          .slice(1, 0, kBytes)
                          .to(at::kCPU, at::kDouble)
                          .contiguous();
    const std::vector<double> logits(last.const_data_ptr<double>(), last.const_data_ptr<double>() + kBytes);
    const double uniform = static_cast<double>(generator() >> 11) * 0x1p-53;
    tokens.push_back(draw(logits, uniform));
    text += static_cast<char>(tokens.back());
  }
  return text;
}

}  // namespace zerorun
