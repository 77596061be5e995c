// Recomputation of activations (docs/recomputation.md): marks for a model's blocks, and a loss without the
// logits of all tokens.
#pragma once

#include "activations/linear_cross_entropy.h"
#include "activations/recomputable.h"
