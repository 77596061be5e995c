// DataPosition: which samples come next, in every checkpoint; permute(), shuffled_sample(): shuffled orders
// that are computed.
#pragma once

#include "base/permutation.h"
#include "engine/data_position.h"
