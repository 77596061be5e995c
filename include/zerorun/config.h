// A ds_config.json as typed settings: Config, load_config(). Needs no LibTorch.
#pragma once

#include "config/config.h"
