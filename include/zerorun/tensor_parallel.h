// Tensor parallelism (docs/tensor_parallel.md): the plan that splits a model, its verification, and the loss
// of logits whose vocabulary is split.
#pragma once

#include "engine/tensor_parallel.h"
#include "tensor_parallel/plan.h"
