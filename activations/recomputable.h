// Marks blocks of a model that may be recomputed in backward instead of keeping their activations
// (docs/recomputation.md). The config chooses which of them are: without zerorun.recompute and
// activation_checkpointing a mark has no effect.
//
//   for (auto& block : blocks) x = zerorun::recomputable(*block, x);
//
// Layers of a torch::nn::Sequential and of a pipeline need no mark.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "activations/block_tensors.h"
#include "activations/recomputed_block.h"

namespace zerorun {

/// The block that is marked by `module`; null if no engine recomputes blocks of a model with it.
std::shared_ptr<const Block> find_block(const torch::nn::Module& module);

/// Returns function(inputs...), a block of the model that `module` belongs to and gives its name, such as
/// "h.3". The inputs are tensors, which may be undefined; `function` captures everything else that the block
/// needs, and is copied: what it captures must live and stay as it is until backward. It returns a tensor, a
/// pair or tuple of tensors, or Tensors. Throws what it throws.
template <typename Function, detail::TensorInput... Inputs>
requires(!detail::TensorInput<Function>) auto recomputable(const torch::nn::Module& module, Function function,
                                                           const Inputs&... inputs) {
  using Result =
      std::decay_t<std::invoke_result_t<Function&, std::conditional_t<true, const at::Tensor&, Inputs>...>>;
  const std::shared_ptr<const Block> block = find_block(module);
  if (!block) return Result(function(inputs...));
  const BlockFunction run = [function](const Tensors& given) mutable {
    return detail::to_tensors(detail::call(function, given, std::make_index_sequence<sizeof...(Inputs)>()));
  };
  return detail::from_tensors<Result>(run_block(block, run, {at::Tensor(inputs)...}));
}

/// Returns module.forward(inputs...), likewise.
template <std::derived_from<torch::nn::Module> Module, detail::TensorInput... Inputs>
auto recomputable(Module& module, const Inputs&... inputs) {
  return recomputable(
      module, [&module](const auto&... given) { return module.forward(given...); }, inputs...);
}

}  // namespace zerorun
