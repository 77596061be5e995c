// Partitioned parameters: DeferredInit builds a model that no rank holds in full. GatheredParameters gives
// access to partitioned parameters.
#pragma once

#include "engine/gathered_parameters.h"
#include "zero/deferred_init.h"
