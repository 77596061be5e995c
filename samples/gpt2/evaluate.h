// How well a model predicts held-out text.
#pragma once

#include <zerorun/engine.h>

#include "samples/gpt2/model.h"
#include "samples/gpt2/token_file.h"

namespace zerorun {

struct Evaluation {
  double loss = 0;  // mean negative log-likelihood of a token, in nats
  double perplexity = 0;
  double bits_per_byte = 0;
};

/// Predicts every token of `text` but the first from those before it in windows of `seq` tokens, `rows`
/// windows at a time on each rank. A collective; leaves the engine in training mode.
Evaluation evaluate(Gpt2& model, Engine& engine, const TokenFile& text, int64_t seq, int64_t rows);

}  // namespace zerorun
