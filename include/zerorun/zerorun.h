// All of ZeroRun that a program needs.
#pragma once

#include <zerorun/communicator.h>  // Communicator, connect: the other ranks
#include <zerorun/config.h>        // Config, load_config: ds_config.json
#include <zerorun/engine.h>        // initialize, Engine
#include <zerorun/parameters.h>  // DeferredInit, GatheredParameters: parameters that are divided among the ranks
#include <zerorun/program.h>     // run_program, UserError
