// Parameters that no rank has in full: DeferredInit builds a model of them, GatheredParameters gives access.
#pragma once

#include "engine/gathered_parameters.h"
#include "zero/deferred_init.h"
