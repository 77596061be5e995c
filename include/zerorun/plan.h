// plan_training(): what a training will take of memory and of the network, before it runs (docs/plan.md).
#pragma once

#include "plan/training_plan.h"
