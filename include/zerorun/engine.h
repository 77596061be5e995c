// initialize() and the Engine that trains a model: backward(), step(), checkpoints;
// reserve_checkpoint_folder().
#pragma once

#include "engine/engine.h"
#include "engine/saving/checkpoint_folder.h"
