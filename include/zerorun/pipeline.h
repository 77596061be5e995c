// Pipeline parallelism (docs/pipeline.md): a model as a list of layers, and the measurement of their times.
#pragma once

#include "pipeline/layer_times.h"
#include "pipeline/layers.h"
