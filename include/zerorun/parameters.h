// Partitioned parameters: DeferredInit builds a model that no rank holds in full. GatheredParameters gives
// access to partitioned parameters, ParameterStates to their gradients and optimizer states.
#pragma once

#include "engine/gathered_parameters.h"
#include "engine/parameter_states.h"
#include "zero/deferred_init.h"
