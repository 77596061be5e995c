// What an Engine is made of, and the parts of an optimizer step. Internal to engine/.
#pragma once

#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/model_parameters.h"
#include "engine/step_timer.h"
#include "optim/shard_optimizer.h"
#include "zero/buckets.h"
#include "zero/gradient_reducer.h"
#include "zero/residency.h"
#include "zero/stage.h"

namespace zerorun {

// Gradients are averaged: multiplied by `before` on their way into the sum over ranks, divided by `after`
// behind it.
struct Averaging {
  double before;
  double after;
};

struct Engine::State {
  State(torch::nn::Module& model, Config config, std::shared_ptr<Communicator> communicator,
        ModelParameters parameters, const InitializeOptions& options);

  void check_before_step() const;
  /// Ends the reduction; returns the norm of the averaged gradients, the same bits on every rank and at every
  /// stage.
  double reduce_and_measure();
  void update(double norm);
  void follow_schedule();
  void report();

  torch::nn::Module* model;
  Config config;
  std::shared_ptr<Communicator> communicator;
  StagePolicy policy;
  Averaging averaging;
  Buckets buckets;
  std::unique_ptr<Residency> residency;  // of marked buckets
  GradientReducer reducer;
  std::vector<int> shard_bucket;  // the bucket of each of the optimizer's shards
  std::unique_ptr<ShardOptimizer> optimizer;
  std::vector<double> base_lrs;
  int64_t buffer_bytes = 0;
  StepTimer timer;

  int64_t micro_steps = 0;
  int64_t global_steps = 0;
  int64_t skipped_steps = 0;
  double grad_norm = 0;
  bool finite = true;  // all gradients of the last optimizer step were
  bool step_applied = false;
  bool has_gradients = false;  // backward ran since the last step()
  bool backward_failed = false;
  int open_scopes = 0;  // GatheredParameters
};

}  // namespace zerorun
