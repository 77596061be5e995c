// Tokenizers as Hugging Face lays them out: tokenizer.json, or vocab.json with merges.txt.
#pragma once

#include <filesystem>

#include "samples/tokenizer/tokenizer.h"

namespace zerorun {

/// Reads the tokenizer of a folder: its tokenizer.json if there is one, else vocab.json and merges.txt; and
/// the special tokens that tokenizer_config.json and special_tokens_map.json name. Throws UserError naming
/// the file for any kind but byte-level BPE with GPT-2's words, and for what is wrong in it.
Tokenizer load_tokenizer(const std::filesystem::path& folder);

/// Writes vocab.json, merges.txt, tokenizer.json and tokenizer_config.json into `folder`, which is created if
/// needed. `max_length`: of a sequence of the model that goes with it, in tokens. Throws UserError.
void save_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& folder, int64_t max_length);

}  // namespace zerorun
