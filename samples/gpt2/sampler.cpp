#include "samples/gpt2/sampler.h"

#include <zerorun/program.h>

#include <numeric>
#include <string>

namespace samples {

using zerorun::UserError;

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  ZR_CHECK(options.seq > 0 && train_batch_size() > 0, "sequence length and batch sizes are positive");
  const std::string size = std::to_string(options.corpus_size) + " tokens";
  if (options.sequential) {
    if (options.corpus_size <= options.seq) {
      throw UserError("the text has " + size + ", --sequential needs more than --seq " +
                      std::to_string(options.seq) + ": give more text with --data or a smaller --seq");
    }
    return;
  }
  if (windows() < train_batch_size()) {
    throw UserError(
        "the text has " + std::to_string(windows()) + " samples (" + size + " in windows of --seq " +
        std::to_string(options.seq) + "), one step needs train_batch_size " +
        std::to_string(train_batch_size()) + " (" + std::to_string(options.micro_batch) + " a micro-step x " +
        std::to_string(options.accumulation) + " accumulation steps x " + std::to_string(options.world_size) +
        " ranks): give more text with --data, a smaller --seq, a smaller batch or fewer ranks");
  }
}

int64_t Sampler::offset(int64_t sample) const {
  if (options_.sequential) return sample * options_.seq % (options_.corpus_size - options_.seq);
  return zerorun::shuffled_sample(sample, windows(), options_.seed) * options_.seq;
}

std::vector<int64_t> Sampler::samples(int64_t first, int64_t micro_step, int64_t rank) const {
  std::vector<int64_t> result(static_cast<size_t>(options_.micro_batch));
  std::iota(result.begin(), result.end(),
            first + (micro_step * options_.world_size + rank) * options_.micro_batch);
  return result;
}

std::vector<int64_t> Sampler::offsets(int64_t step, int64_t micro_step, int64_t rank) const {
  std::vector<int64_t> result = samples(step * train_batch_size(), micro_step, rank);
  for (int64_t& sample : result) sample = offset(sample);
  return result;
}

}  // namespace samples
