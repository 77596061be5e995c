#include "samples/gpt2/dataset.h"

#include <torch/torch.h>
#include <zerorun/program.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <numeric>

#include "samples/common/text.h"

namespace samples {
namespace {

using zerorun::UserError;

// Number of samples in a block. In each block the sources have samples in proportion to their weights.
constexpr int64_t kBlock = 1000;
constexpr std::chrono::milliseconds kPoll(20);

std::vector<TokenSource> sources_of(const DatasetOptions& options) {
  const int64_t row_length = options.field.empty() ? 0 : options.sampler.seq;
  if (options.weights.empty()) return {{options.files, options.field, row_length}};
  if (options.weights.size() != options.files.size())
    throw UserError("--weights has " + std::to_string(options.weights.size()) +
                    " numbers, expected one for each of the " + std::to_string(options.files.size()) +
                    " files of --data");
  std::vector<TokenSource> sources;
  for (const auto& file : options.files) sources.push_back({{file}, options.field, row_length});
  return sources;
}

// Returns each source's number of samples in a block, in proportion to its weight. Rounds by largest
// remainders.
std::vector<int64_t> shares_of(const std::vector<double>& weights) {
  if (weights.empty()) return {kBlock};
  double total = 0;
  for (const double weight : weights) {
    if (!(weight > 0) || !std::isfinite(weight)) throw UserError("--weights: expected numbers above 0");
    total += weight;
  }
  std::vector<int64_t> shares;
  std::vector<std::pair<double, size_t>> remainders;
  for (size_t index = 0; index < weights.size(); ++index) {
    const double exact = kBlock * weights[index] / total;
    shares.push_back(static_cast<int64_t>(exact));
    remainders.emplace_back(static_cast<double>(shares.back()) - exact, index);
  }
  std::sort(remainders.begin(), remainders.end());
  const int64_t missing = kBlock - std::accumulate(shares.begin(), shares.end(), int64_t{0});
  for (int64_t index = 0; index < missing; ++index) ++shares[remainders[static_cast<size_t>(index)].second];
  for (const int64_t share : shares) {
    if (share == 0) throw UserError("--weights: a file has less than a thousandth of all weights");
  }
  return shares;
}

// Returns rank 0's text, which has fewer than 512 bytes, on every rank. A collective.
std::string from_rank_0(zerorun::Communicator& communicator, const std::string& text) {
  constexpr int64_t kLongest = 512;
  at::Tensor bytes = at::zeros({kLongest}, at::kDouble);
  ZR_CHECK(static_cast<int64_t>(text.size()) < kLongest, text);
  if (communicator.rank() == 0) std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<double>());
  communicator.all_reduce(bytes, "name of the token file")->wait();
  std::string result;
  for (const double* byte = bytes.const_data_ptr<double>(); *byte != 0; ++byte)
    result += static_cast<char>(static_cast<int>(*byte));
  return result;
}

// Runs `work` on the ranks where `is_mine` is true. All ranks must call this. They repeat short all-reduces
// until `work` is done, so `work` may take longer than the timeout of a collective. If `work` throws, its
// rank rethrows, and the others throw UserError.
void while_others_wait(zerorun::Communicator& communicator, bool is_mine, const std::function<void()>& work) {
  std::future<void> done;
  if (is_mine) done = std::async(std::launch::async, work);
  bool failed = false;
  std::exception_ptr failure;
  while (true) {
    const bool finished = !done.valid() || done.wait_for(kPoll) == std::future_status::ready;
    if (finished && done.valid()) {
      try {
        done.get();
      } catch (...) {
        failure = std::current_exception();
        failed = true;
      }
    }
    at::Tensor counts = torch::tensor({finished ? 0.0 : 1.0, failed ? 1.0 : 0.0}, torch::kDouble);
    communicator.all_reduce(counts, "preparing the data")->wait();
    if (counts[0].item<double>() > 0) continue;
    if (failure) std::rethrow_exception(failure);
    if (counts[1].item<double>() > 0) throw UserError("another rank could not prepare the data");
    return;
  }
}

}  // namespace

std::vector<TokenFile> open_token_files(const std::vector<TokenSource>& sources, const Tokenizer& tokenizer,
                                        const std::filesystem::path& folder,
                                        zerorun::Communicator& communicator, bool makes_tokens) {
  std::vector<std::string> names(sources.size());
  while_others_wait(communicator, makes_tokens, [&] {
    for (size_t index = 0; index < sources.size(); ++index)
      names[index] = make_token_file(sources[index], tokenizer, folder).filename().string();
  });
  std::vector<TokenFile> files;
  for (const std::string& name : names) files.emplace_back(folder / from_rank_0(communicator, name));
  return files;
}

Dataset::Dataset(const DatasetOptions& options, const Tokenizer& tokenizer,
                 zerorun::Communicator& communicator, bool makes_tokens)
    : options_(options), shares_(shares_of(options.weights)) {
  const std::vector<TokenSource> sources = sources_of(options);
  sources_ = open_token_files(sources, tokenizer, options.cache, communicator, makes_tokens);
  for (const TokenFile& source : sources_) {
    SamplerOptions sampler = options.sampler;
    sampler.corpus_size = source.size();
    samplers_.emplace_back(sampler);
  }
}

Dataset::Place Dataset::place(int64_t sample) const {
  if (shares_.size() == 1) return {0, sample};
  const int64_t block = sample / kBlock;
  int64_t within = permute(sample % kBlock, kBlock, options_.sampler.seed + static_cast<uint64_t>(block));
  size_t source = 0;
  while (within >= shares_[source]) within -= shares_[source++];
  return {source, block * shares_[source] + within};
}

Batch Dataset::batch(const std::vector<int64_t>& numbers) const {
  const auto rows = static_cast<int64_t>(numbers.size());
  const int64_t seq = options_.sampler.seq;
  Batch batch{at::empty({rows, seq}, at::kLong), {}};
  if (!options_.field.empty()) batch.attention_mask = at::zeros({rows, seq}, at::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    const auto [source, sample] = place(numbers[static_cast<size_t>(row)]);
    const int64_t offset = samplers_[source].offset(sample);
    sources_[source].copy(offset, seq, batch.tokens.mutable_data_ptr<int64_t>() + row * seq);
    if (batch.attention_mask.defined())
      batch.attention_mask[row].narrow(0, 0, sources_[source].row_tokens(offset / seq)).fill_(1);
  }
  return batch;
}

int64_t Dataset::samples() const {
  int64_t samples = 0;
  for (const Sampler& sampler : samplers_) samples += sampler.windows();
  return samples;
}

std::string Dataset::description() const {
  int64_t tokens = 0;
  for (const TokenFile& source : sources_) tokens += source.size();
  return std::to_string(options_.files.size()) + (options_.files.size() == 1 ? " file, " : " files, ") +
         with_commas(tokens) + " tokens" +
         (options_.sampler.sequential ? ", read from front to back"
                                      : ", " + with_commas(samples()) + " samples");
}

std::string Dataset::identity() const {
  std::string identity = "seq " + std::to_string(options_.sampler.seq) + ", seed " +
                         std::to_string(options_.sampler.seed) +
                         (options_.sampler.sequential ? ", sequential" : "");
  for (size_t index = 0; index < sources_.size(); ++index) {
    const std::string stem = std::filesystem::path(sources_[index].name()).stem().string();
    // Uses only the hash at the end of the token file's name, because the rest is the name of a text file,
    // which may be renamed.
    identity += ", " + stem.substr(stem.rfind('-') + 1) + " " + std::to_string(shares_[index]);
  }
  return identity;
}

}  // namespace samples
