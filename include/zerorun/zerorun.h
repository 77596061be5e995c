// All of ZeroRun's public headers.
#pragma once

#include <zerorun/communicator.h>     // Communicator, connect: the other ranks
#include <zerorun/config.h>           // Config, load_config: ds_config.json
#include <zerorun/data.h>             // DataPosition: every sample exactly once, over restarts
#include <zerorun/engine.h>           // initialize, Engine
#include <zerorun/live_line.h>        // LiveLine: a line that shows how training goes
#include <zerorun/optimizer.h>        // ZeroRedundancyOptimizer, enable_zero: without a config
#include <zerorun/parameters.h>       // DeferredInit, GatheredParameters: partitioned parameters
#include <zerorun/pipeline.h>         // Pipeline, measure_layers: layers divided among stages
#include <zerorun/plan.h>             // plan_training: memory and traffic before a run
#include <zerorun/program.h>          // run_program, UserError
#include <zerorun/recomputation.h>    // recomputable: blocks that may be recomputed in backward
#include <zerorun/safetensors.h>      // SafetensorsReader, SafetensorsFolder: weights in files
#include <zerorun/tensor_parallel.h>  // TensorPlan, verify_plan: split layers
