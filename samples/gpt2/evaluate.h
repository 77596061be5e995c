// Measures how well a model predicts held-out text.
#pragma once

#include <zerorun/engine.h>

#include "samples/gpt2/model.h"
#include "samples/gpt2/token_file.h"

namespace samples {

struct Evaluation {
  double loss = 0;  // mean negative log-likelihood of a token, in nats
  double perplexity = 0;
  double bits_per_byte = 0;
};

/// Predicts each token of `text` but the first from the tokens before it in its window of `seq` tokens. Each
/// rank runs `rows` windows at a time. A collective; leaves the engine in training mode. Throws UserError if
/// `text` has fewer than two tokens.
Evaluation evaluate(Gpt2& model, zerorun::Engine& engine, const TokenFile& text, int64_t seq, int64_t rows);

}  // namespace samples
