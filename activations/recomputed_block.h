// Runs a block of a model without keeping its activations, and once more in backward.
//
// [Note: recomputation] The block is one node of autograd's graph. Its forward runs without gradients and
// keeps only the block's inputs. Its backward runs the block again with gradients, and then a backward of its
// own through the graph of that forward (the re-entrant form of torch.utils.checkpoint). So it works with
// LibTorch's own autograd engine: the other form, which packs each saved tensor, needs default hooks, which
// LibTorch asks of an autograd engine in Python only. A backward inside a backward is what the gradient
// reducer and the gathers of stage 3 know already. Prices of this form: autograd::grad() and double backward
// are refused, and a parameter of several blocks gets a gradient from each, which are added in the dtype of
// accumulation.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "activations/recomputation.h"

namespace zerorun {

using Tensors = std::vector<at::Tensor>;
using BlockFunction = std::function<Tensors(const Tensors& inputs)>;

/// A block of a model, as long as its engine lives.
struct Block {
  std::string name;
  std::shared_ptr<Recomputation> recomputation;
  Tensors parameters;  // of which some may require grad
};

/// As long as this object lives, blocks of this thread are within another one.
class InsideBlock {
 public:
  InsideBlock();
  /// `outer`: of how many blocks this one is inside.
  explicit InsideBlock(int outer);
  ~InsideBlock();
  InsideBlock(const InsideBlock&) = delete;
  InsideBlock& operator=(const InsideBlock&) = delete;

 private:
  int before_;
};

/// Whether run_block() will recompute the block.
bool is_recomputed(const Block& block, const Tensors& inputs);

/// Returns function(inputs), of which some may be undefined. If the block's recomputation chooses it,
/// `function` is called again in backward and must compute the same from inputs with the same values: what it
/// captures must live and stay as it is until then. Throws UserError in backward if it computes outputs of
/// other shapes or dtypes, or if the backward is none that accumulates gradients.
Tensors run_block(const std::shared_ptr<const Block>& block, const BlockFunction& function,
                  const Tensors& inputs);

}  // namespace zerorun
