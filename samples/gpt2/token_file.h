// Text as tokens in a file, which is mapped into memory: text is tokenised once, and may be larger than the
// memory. The file's name has a hash of all that its content depends on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "samples/tokenizer/tokenizer.h"

namespace zerorun {

/// What is tokenised: the files one after the other, with the tokenizer's end token between them; or, if
/// `field` is given, each text of that field in files of JSON (samples/tokenizer/records.h), cut off or
/// filled up to `row_length` tokens.
struct TokenSource {
  std::vector<std::filesystem::path> files;
  std::string field;
  int64_t row_length = 0;  // only with a field
};

/// The file in `folder` that has the source's tokens, which is made if it does not exist. One process at a
/// time should make it; others may. Throws UserError naming the source's file.
std::filesystem::path make_token_file(const TokenSource& source, const Tokenizer& tokenizer,
                                      const std::filesystem::path& folder);

/// Immutable; any thread.
class TokenFile {
 public:
  /// Throws UserError for a file that make_token_file() has not made, or that is incomplete.
  explicit TokenFile(const std::filesystem::path& file);
  ~TokenFile();
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&&) = delete;

  int64_t size() const;        // tokens, with padding
  int64_t text_bytes() const;  // what they were made from
  int64_t row_length() const;  // 0: one stream of tokens
  const std::string& name() const { return name_; }
  void copy(int64_t offset, int64_t count, int64_t* to) const;
  /// The tokens of a row that are no padding.
  int64_t row_tokens(int64_t row) const;

  struct Header;  // how the file begins

 private:
  std::string name_;
  const Header* header_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace zerorun
