#include "samples/gpt2/sampler.h"

#include <zerorun/program.h>

#include <bit>
#include <numeric>
#include <string>

namespace samples {
namespace {

using zerorun::UserError;

// The finalizer of SplitMix64: every input bit changes about half of the output bits.
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

// A Feistel network permutes [0, 4^k). Applying it again until the value is below `size` gives a permutation
// of [0, size) (cycle walking). 4^k < 4 size, so this takes fewer than four applications on average.
int64_t permute(int64_t index, int64_t size, uint64_t key) {
  ZR_CHECK(0 <= index && index < size, "index " + std::to_string(index) + " of " + std::to_string(size));
  constexpr int kRounds = 6;
  const int half_bits = (std::bit_width(static_cast<uint64_t>(size - 1)) + 1) / 2;
  const uint64_t half_mask = (uint64_t{1} << half_bits) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits;
    uint64_t right = value & half_mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (mix(mix(key + round) ^ right) & half_mask);
      left = right;
      right = next;
    }
    value = left << half_bits | right;
  } while (value >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(value);
}

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
  const auto epoch = static_cast<uint64_t>(sample / windows());
  return permute(sample % windows(), windows(), mix(mix(options_.seed) + epoch)) * options_.seq;
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
