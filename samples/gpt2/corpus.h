// The text to train on, as bytes: each byte is a token. Read once by the program's main(); immutable
// afterwards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace zerorun {

struct Corpus {
  std::vector<uint8_t> bytes;
  std::string description;  // for messages: "3 files"
};

/// The concatenation of `files`, in that order; must have at least `min_bytes`. Throws UserError naming the
/// file.
Corpus read_corpus(const std::vector<std::filesystem::path>& files, int64_t min_bytes);

/// ZeroRun's own documents and C++ sources below `source_dir`, sorted by path. Throws UserError if there are
/// none.
std::vector<std::filesystem::path> own_sources(const std::filesystem::path& source_dir);

}  // namespace zerorun
