// Reads and writes a GPT-2 in Hugging Face's layout: a folder with config.json, the weights as .safetensors,
// and the tokenizer's files (samples/tokenizer/tokenizer_files.h).
#pragma once

#include <filesystem>

#include "samples/gpt2/model.h"
#include "samples/tokenizer/tokenizer.h"

namespace samples {

/// The shape of the model that the folder's config.json describes. Throws UserError, naming the file and the
/// key, for another kind of model or a variant of GPT-2 that Gpt2 does not implement.
Gpt2Options read_model_config(const std::filesystem::path& folder);

/// Prints a warning to stderr if the folder has a config.json that asks for dropout, which Gpt2 does not
/// apply.
void warn_of_dropout(const std::filesystem::path& folder);

/// Writes config.json and the tokenizer's files (none for Tokenizer::bytes()). Throws UserError.
void write_model_config(const Gpt2Options& options, const Tokenizer& tokenizer,
                        const std::filesystem::path& folder);

}  // namespace samples
