// Modules that deferred_init_test.cpp builds both plainly and under a DeferredInit, and compares: LibTorch's
// own modules, a module for each initialiser, and modules whose tensors are computed, tied, shared or copied.
// Each call of `make` draws from the default generator.
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
