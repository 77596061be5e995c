// ZeRO without a configuration file: ZeroRedundancyOptimizer, enable_zero().
#pragma once

#include "engine/zero_redundancy_optimizer.h"
