// Determines which tokens of the corpus each step reads, by arithmetic without LibTorch. Immutable, safe from
// any thread.
//
// Samples are numbered consecutively over all steps, micro-steps and ranks. A step has the same sample
// numbers at any world size if train_batch_size is the same. The text of a sample depends only on its number,
// the corpus, seq and the seed:
//   shuffled    the corpus is cut into windows of seq tokens; each epoch reads them in a different random
//   order sequential  sample n starts at token n * seq, modulo (corpus size - seq)
#pragma once

#include <zerorun/data.h>

#include <cstdint>
#include <vector>

namespace samples {

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

  /// Returns the sample numbers of one rank in one micro-step of the step whose first sample is `first`.
  std::vector<int64_t> samples(int64_t first, int64_t micro_step, int64_t rank) const;
  /// Returns the index of a sample's first token in the corpus.
  int64_t offset(int64_t sample) const;
  /// Returns the offsets of one rank's samples in one micro-step, for a run in which every step has
  /// train_batch_size() samples.
  std::vector<int64_t> offsets(int64_t step, int64_t micro_step, int64_t rank) const;

  int64_t train_batch_size() const {
    return options_.micro_batch * options_.accumulation * options_.world_size;
  }
  int64_t windows() const { return options_.corpus_size / options_.seq; }

 private:
  SamplerOptions options_;
};

using zerorun::permute;

}  // namespace samples
