// Recomputation of activations (docs/recomputation.md): marks for a model's blocks.
#pragma once

#include "activations/recomputable.h"
