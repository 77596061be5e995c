// What an Engine is made of, and the parts of an optimizer step. Internal to engine/.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/model_parameters.h"
#include "engine/step_timer.h"
#include "optim/loss_scaler.h"
#include "optim/shard_optimizer.h"
#include "zero/buckets.h"
#include "zero/gradient_reducer.h"
#include "zero/residency.h"
#include "zero/stage.h"

namespace zerorun {

// Gradients are multiplied by `before` on their way into the sum over ranks, divided by `after` behind it.
struct Averaging {
  double before;
  double after;
};

struct Engine::State {
  State(torch::nn::Module& model, Config config, std::shared_ptr<Communicator> communicator,
        ModelParameters parameters, const InitializeOptions& options);

  void check_before_step() const;
  /// Ends the reduction; sets grad_norm, the same bits on every rank and at every stage, and not_finite.
  void reduce_and_measure();
  void update();
  double loss_scale() const { return scaler ? scaler->scale() : 1; }
  void follow_schedule();
  /// Tells of a skipped step and moves the loss scale. Throws TrainingError.
  void follow_loss_scale();
  void report_time();

  std::vector<Shard> make_shards();
  double finding(int64_t position, int parameter, bool too_large) const;
  std::string name_not_finite(std::span<const double> findings);

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
  std::optional<LossScaler> scaler;  // fp16
  int64_t buffer_bytes = 0;
  StepTimer timer;

  int64_t micro_steps = 0;
  int64_t global_steps = 0;
  int64_t skipped_steps = 0;
  double grad_norm = 0;
  std::string not_finite;  // which gradient of the last optimizer step was infinite or NaN; empty: none
  bool step_applied = false;
  bool has_gradients = false;  // backward ran since the last step()
  bool backward_failed = false;
  int open_scopes = 0;  // GatheredParameters
  int open_no_syncs = 0;
};

}  // namespace zerorun
