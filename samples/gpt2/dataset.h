// What a run trains on: one source of tokens, or several with weights. Immutable after opening; any thread.
#pragma once

#include <zerorun/communicator.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "samples/gpt2/sampler.h"
#include "samples/gpt2/token_file.h"

namespace zerorun {

struct DatasetOptions {
  std::vector<std::filesystem::path> files;
  std::vector<double> weights;  // of each file; empty: the files are one text
  std::string field;            // of JSON files; empty: files of text
  std::filesystem::path cache;  // the folder for tokens
  SamplerOptions sampler;       // corpus_size is found
};

/// One row a sample; the mask, (B, T) too, is undefined if no sample has padding.
struct Batch {
  at::Tensor tokens;  // int64
  at::Tensor attention_mask;
};

/// The tokens of `sources`, in `folder`. A collective: ranks with `makes_tokens` (one of each machine) make
/// the files that do not exist, and the others wait for them however long it takes. Throws UserError.
std::vector<TokenFile> open_token_files(const std::vector<TokenSource>& sources, const Tokenizer& tokenizer,
                                        const std::filesystem::path& folder, Communicator& communicator,
                                        bool makes_tokens);

class Dataset {
 public:
  /// A collective, as open_token_files(). Throws UserError.
  Dataset(const DatasetOptions& options, const Tokenizer& tokenizer, Communicator& communicator,
          bool makes_tokens);

  /// The samples of one rank's micro-step, in a step that begins with sample `first`.
  Batch batch(int64_t first, int64_t micro_step, int64_t rank) const;
  int64_t train_batch_size() const { return samplers_.front().train_batch_size(); }
  /// "3 files, 123,456 tokens, 964 samples"
  std::string description() const;
  /// Differs if a sample's number may stand for something else: for checkpoints.
  std::string identity() const;

 private:
  struct Place {
    size_t source;
    int64_t sample;  // number within the source
  };
  Place place(int64_t sample) const;

  DatasetOptions options_;
  std::vector<TokenFile> sources_;
  std::vector<Sampler> samplers_;
  std::vector<int64_t> shares_;  // of each source in kBlock samples
};

}  // namespace zerorun
