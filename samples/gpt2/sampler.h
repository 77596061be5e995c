// Determines which tokens of the corpus each step reads, by arithmetic without LibTorch. Immutable; any
// thread.
//
// Samples are numbered over all steps, micro-steps and ranks. A step has the same sample numbers at any world
// size with the same train_batch_size. Which text a number stands for depends on the corpus, seq and the seed
// only:
//   shuffled    the corpus is cut into windows of seq tokens; each epoch reads them in an order of its own
//   sequential  window after window from the start, wrapping around at size - seq
#pragma once

#include <cstdint>
#include <vector>

namespace zerorun {

struct SamplerOptions {
  int64_t corpus_size = 0;
  int64_t seq = 0;
  int64_t micro_batch = 1;
  int64_t accumulation = 1;
  int64_t world_size = 1;
  uint64_t seed = 0;
  bool sequential = false;
};

class Sampler {
 public:
  /// Throws UserError when the corpus has too few samples for one step.
  explicit Sampler(const SamplerOptions& options);

  /// The numbers of the samples of one rank's micro-step, in a step that begins with sample `first`.
  std::vector<int64_t> samples(int64_t first, int64_t micro_step, int64_t rank) const;
  /// Where a sample begins in the corpus, by its number.
  int64_t offset(int64_t sample) const;
  /// The offsets of one rank's micro-step, in a run whose steps all have this batch size.
  std::vector<int64_t> offsets(int64_t step, int64_t micro_step, int64_t rank) const;

  int64_t train_batch_size() const {
    return options_.micro_batch * options_.accumulation * options_.world_size;
  }
  int64_t windows() const { return options_.corpus_size / options_.seq; }

 private:
  SamplerOptions options_;
};

/// Where a pseudo-random permutation of [0, size), chosen by `key`, moves `index`.
int64_t permute(int64_t index, int64_t size, uint64_t key);

}  // namespace zerorun
