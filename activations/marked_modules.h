// The modules of an engine's model by which blocks are marked (activations/recomputable.h), and the layers of
// its torch::nn::Sequentials, which need no mark.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <memory>
#include <vector>

#include "activations/recomputation.h"

namespace zerorun {

/// As long as this object lives, find_block() finds the model's blocks, and a Sequential runs its layers as
/// blocks: those that take and return one tensor. Then Sequential::at<T>() of such a layer throws, while
/// ptr() and the module's children are as before.
class MarkedModules {
 public:
  MarkedModules(torch::nn::Module& model, std::shared_ptr<Recomputation> recomputation);
  ~MarkedModules();
  MarkedModules(const MarkedModules&) = delete;
  MarkedModules& operator=(const MarkedModules&) = delete;

 private:
  struct Replaced {
    std::shared_ptr<torch::nn::Module> owner;  // keeps `layer`; null for the model itself
    torch::nn::AnyModule* layer;
    torch::nn::AnyModule original;
  };

  void replace_layers(torch::nn::Module& module, const std::shared_ptr<torch::nn::Module>& owner);

  std::shared_ptr<Recomputation> recomputation_;
  std::vector<const torch::nn::Module*> modules_;
  std::vector<Replaced> replaced_;
};

}  // namespace zerorun
