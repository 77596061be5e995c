// Modules that are built plainly and under the build scope, to compare: LibTorch's own, one for each
// initialiser, and tensors that are computed, tied, shared or copied. Each call of `make` draws from the
// default generator.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace zerorun {

struct DeferredCase {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
};

std::vector<DeferredCase> deferred_library_modules();
std::vector<DeferredCase> deferred_initialisers();
std::vector<DeferredCase> deferred_computed();

}  // namespace zerorun
