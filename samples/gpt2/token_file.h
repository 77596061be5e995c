// A file of tokens that is mapped into memory: text is tokenised once, and may be larger than memory. The
// file's name contains a hash of everything that its content depends on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "samples/tokenizer/tokenizer.h"

namespace samples {

/// The text to tokenise. Without `field`: the files one after the other, with the tokenizer's end token
/// between them. With `field`: each text of that field in files of JSON (samples/tokenizer/records.h),
/// truncated or padded to `row_length` tokens.
struct TokenSource {
  std::vector<std::filesystem::path> files;
  std::string field;
  int64_t row_length = 0;  // only with a field
};

/// Returns the file in `folder` with the source's tokens, and creates it if it does not exist. Several
/// processes may call this at once, but then each of them does all of the work. Throws UserError naming the
/// source's file.
std::filesystem::path make_token_file(const TokenSource& source, const Tokenizer& tokenizer,
                                      const std::filesystem::path& folder);

/// Immutable, safe from any thread.
class TokenFile {
 public:
  /// Throws UserError if the file is incomplete or make_token_file() did not write it.
  explicit TokenFile(const std::filesystem::path& file);
  ~TokenFile();
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&&) = delete;

  int64_t size() const;        // tokens, including padding
  int64_t text_bytes() const;  // size of the tokenised text
  int64_t row_length() const;  // tokens; 0: one stream without rows
  const std::string& name() const { return name_; }
  void copy(int64_t offset, int64_t count, int64_t* to) const;
  /// The number of tokens of a row without its padding.
  int64_t row_tokens(int64_t row) const;

  struct Header;  // the start of the file

 private:
  std::string name_;
  const Header* header_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace samples
