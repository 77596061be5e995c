// What a program with a tensor plan may call besides the engine. Collectives of the tensor group or the job,
// used by the engine's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "engine/engine.h"

namespace zerorun {

/// Runs one micro-batch whole and split, and compares the loss and the gradients of all trained parameters.
/// This finds what no comparison among tensor ranks can: modules that sum or normalise over a split
/// dimension, or pair the wrong heads. `whole`: a second instance of the engine's model, which gets the
/// engine's values; it needs the memory of the whole model and its gradients on each rank. `loss_of_whole`
/// and `loss` compute the loss of the same samples, with the same random numbers if they use any, by the two
/// models. `tolerance`: the largest difference, relative to the largest magnitude in the tensor. A collective
/// between step() and the next backward(). Throws UserError on all ranks that names the parameters which
/// differ.
void verify_plan(Engine& engine, const Model& whole, const std::function<at::Tensor()>& loss_of_whole,
                 const std::function<at::Tensor()>& loss, double tolerance = 1e-4);

/// The mean cross entropy of logits whose vocabulary is split among tensor ranks
/// (tensor_parallel/cross_entropy.h): for programs whose plan says `colwise` for the output layer instead of
/// colwise_gather_output. `weight`: the output layer's weight, a parameter of the engine's model. `logits`:
/// (N, V_r), `targets`: (N). If the weight is not split, at::cross_entropy_loss().
at::Tensor vocab_parallel_cross_entropy(Engine& engine, const at::Tensor& weight, const at::Tensor& logits,
                                        const at::Tensor& targets, int64_t ignored = -100);

}  // namespace zerorun
