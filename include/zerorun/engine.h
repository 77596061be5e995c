// initialize() and the Engine that trains a model: backward(), step(), checkpoints;
// reserve_checkpoint_folder().
#pragma once

#include "engine/checkpoint_folder.h"
#include "engine/engine.h"
