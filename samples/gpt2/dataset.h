// The training data of a run: one source of tokens, or several with weights. Immutable after construction, so
// safe from any thread.
#pragma once

#include <zerorun/communicator.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "samples/gpt2/sampler.h"
#include "samples/gpt2/token_file.h"

namespace samples {

struct DatasetOptions {
  std::vector<std::filesystem::path> files;
  std::vector<double> weights;  // one for each file; empty: the files are one text
  std::string field;            // key of the texts in JSON files; empty: plain text
  std::filesystem::path cache;  // folder for token files
  SamplerOptions sampler;       // corpus_size is ignored: each source has its own
};

/// One row per sample, shape (B, T). The mask has the same shape; it is undefined if samples have no padding.
struct Batch {
  at::Tensor tokens;  // int64
  at::Tensor attention_mask;
};

/// Opens the token files of `sources` in `folder`. A collective: ranks with `makes_tokens` (one per machine)
/// create missing files, and the other ranks wait for them without a timeout. Throws UserError.
std::vector<TokenFile> open_token_files(const std::vector<TokenSource>& sources, const Tokenizer& tokenizer,
                                        const std::filesystem::path& folder,
                                        zerorun::Communicator& communicator, bool makes_tokens);

class Dataset {
 public:
  /// A collective, like open_token_files(). Throws UserError.
  Dataset(const DatasetOptions& options, const Tokenizer& tokenizer, zerorun::Communicator& communicator,
          bool makes_tokens);

  /// Returns the samples with these numbers (DataPosition::numbers()).
  Batch batch(const std::vector<int64_t>& numbers) const;
  /// Of all sources.
  int64_t samples() const;
  int64_t train_batch_size() const { return samplers_.front().train_batch_size(); }
  /// "3 files, 123,456 tokens, 964 samples"
  std::string description() const;
  /// A text that is stored in checkpoints. If two data sets have the same identity, each sample number refers
  /// to the same sample in both.
  std::string identity() const;

 private:
  struct Place {
    size_t source;
    int64_t sample;  // number of the sample within the source
  };
  Place place(int64_t sample) const;

  DatasetOptions options_;
  std::vector<TokenFile> sources_;
  std::vector<Sampler> samplers_;
  std::vector<int64_t> shares_;  // samples of each source in a block
};

}  // namespace samples
