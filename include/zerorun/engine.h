// initialize() and the Engine that trains a model: backward(), step(), checkpoints.
#pragma once

#include "engine/engine.h"
