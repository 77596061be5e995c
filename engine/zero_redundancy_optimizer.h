// ZeRO without a configuration file: an optimizer of torch::optim whose states, and if wanted gradients and
// parameters, are partitioned across ranks. The program trains as with the optimizer itself:
//
//   ZeroRedundancyOptimizer optimizer(torch::optim::Adam(model->parameters()), {.partition_grad = true});
//   for (...) {
//     optimizer.zero_grad();
//     model->loss(batch).backward();
//     optimizer.step();
//   }
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace zerorun {

struct ZeroRedundancyOptions {
  bool overlap_communication = true;                // gradients are reduced while backward runs
  bool partition_grad = false;                      // each rank keeps its part of the gradients (stage 2)
  bool partition_parameters = false;                // each rank keeps its part of the parameters (stage 3)
  std::shared_ptr<Communicator> communicator = {};  // default: connect()
  double max_grad_norm = 0;                         // step() clips gradients to this norm; 0: it does not
};

/// One per model and rank, used by one thread at a time. Gradients of all backwards since the last step are
/// summed, as torch does, and averaged over ranks. Scalars such as the learning rate may be changed in
/// param_groups() or by a scheduler of torch::optim. Parameters' grad() stays empty, so clip_grad_norm_() and
/// clip_grad_value_() of LibTorch do nothing: give max_grad_norm instead. A parameter without a gradient in a
/// step is updated with a gradient of 0 (moments and weight decay act on it), where LibTorch leaves it out.
class ZeroRedundancyOptimizer {
 public:
  /// Takes over the optimizer, which must be element-wise (Adam, AdamW, SGD, Adagrad, RMSprop) and not yet
  /// stepped. Trains only that optimizer's parameters; the ranks do not exchange the model's buffers. A
  /// collective. Throws UserError.
  template <std::derived_from<torch::optim::Optimizer> Optimizer>
  explicit ZeroRedundancyOptimizer(Optimizer optimizer, ZeroRedundancyOptions options = {})
      : ZeroRedundancyOptimizer(std::make_unique<Optimizer>(std::move(optimizer)), std::move(options)) {}
  ~ZeroRedundancyOptimizer();
  ZeroRedundancyOptimizer(const ZeroRedundancyOptimizer&) = delete;
  ZeroRedundancyOptimizer& operator=(const ZeroRedundancyOptimizer&) = delete;

  /// Updates the parameters. Throws UserError if no backward has reached any of them since the last step.
  void step();
  /// Throws UserError for a closure, because optimizers may call it to recompute the loss within a step, and
  /// not equally often on all ranks.
  void step(const torch::optim::Optimizer::LossClosure& closure);
  /// Drops the gradients since the last step, for example of a batch to be ignored. model->zero_grad() cannot
  /// do this, because the parameters' grad() is always empty.
  void zero_grad();

  /// For schedulers of torch::optim.
  operator torch::optim::Optimizer&() { return *optimizer_; }
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() { return optimizer_->param_groups(); }
  /// For checkpoints, norms and memory reports. Under enable_zero() parameters have the model's names;
  /// otherwise they are named "0", "1", ... in the optimizer's order.
  Engine& engine() { return *engine_; }

 private:
  friend std::unique_ptr<ZeroRedundancyOptimizer> enable_zero(torch::nn::Module& model,
                                                              torch::optim::Optimizer& optimizer, int stage,
                                                              std::shared_ptr<Communicator> communicator,
                                                              double max_grad_norm);

  ZeroRedundancyOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer, ZeroRedundancyOptions options);
  ZeroRedundancyOptimizer(torch::nn::Module& model, torch::optim::Optimizer& optimizer, int stage,
                          std::shared_ptr<Communicator> communicator, double max_grad_norm);
  void start(torch::nn::Module& model, int stage, ZeroRedundancyOptions options);

  std::unique_ptr<torch::optim::Optimizer> owned_;  // null under enable_zero()
  std::unique_ptr<torch::nn::Module> parameters_;   // null under enable_zero()
  torch::optim::Optimizer* optimizer_;
  std::vector<const void*> registered_;  // parameters that belong to this object
  std::unique_ptr<Engine> engine_;
};

/// Turns an ordinary training program into one with ZeRO: partitions the training state of `model` as `stage`
/// (0 to 3) says, and makes `optimizer` update this rank's part. `model` and `optimizer` must outlive the
/// result, so define them before it. Call step() and zero_grad() of the result, not of the optimizer. Code
/// for evaluation and prediction needs no change. `max_grad_norm`: as in ZeroRedundancyOptions. A collective.
/// Throws UserError.
std::unique_ptr<ZeroRedundancyOptimizer> enable_zero(torch::nn::Module& model,
                                                     torch::optim::Optimizer& optimizer, int stage = 2,
                                                     std::shared_ptr<Communicator> communicator = {},
                                                     double max_grad_norm = 0);

}  // namespace zerorun
