// Reads and writes tokenizers in Hugging Face's layout: tokenizer.json, or vocab.json with merges.txt.
#pragma once

#include <filesystem>

#include "samples/tokenizer/tokenizer.h"

namespace samples {

/// Reads the tokenizer of a folder from tokenizer.json if there is one, else from vocab.json and merges.txt.
/// Adds the special tokens of tokenizer_config.json and special_tokens_map.json. Throws UserError, naming the
/// file, if a file is wrong or the tokenizer is not byte-level BPE with GPT-2's rules for words.
Tokenizer load_tokenizer(const std::filesystem::path& folder);

/// Writes vocab.json, merges.txt, tokenizer.json and tokenizer_config.json into `folder`, which is created if
/// needed. `max_length`: the longest sequence of the model, in tokens. Throws UserError.
void save_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& folder, int64_t max_length);

}  // namespace samples
