// The modules of an engine's model by which blocks are marked (activations/recomputable.h), and the layers of
// its torch::nn::Sequentials, which need no mark.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <string>
#include <vector>

#include "activations/recomputation.h"

namespace zerorun {

/// As long as this object lives, find_block() finds the model's blocks, and a Sequential runs its layers as
/// blocks: those with parameters that take one tensor. Then Sequential::at<T>() of such a layer throws, while
/// ptr() and the module's children are as before. Of several objects for a
/// model the latest counts.
class MarkedModules {
 public:
  MarkedModules(torch::nn::Module& model, std::shared_ptr<Recomputation> recomputation);
  ~MarkedModules();
  MarkedModules(const MarkedModules&) = delete;
  MarkedModules& operator=(const MarkedModules&) = delete;

  /// Whether the pattern (base/name_pattern.h) names one of the modules.
  bool has(const std::string& pattern) const;

 private:
  std::shared_ptr<Recomputation> recomputation_;
  std::shared_ptr<torch::nn::Module> model_;  // null if no shared_ptr owns it
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<torch::nn::SequentialImpl*> sequentials_;
};

}  // namespace zerorun
