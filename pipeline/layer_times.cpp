#include "pipeline/layer_times.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>

#include "comm/agreement.h"

namespace zerorun {
namespace {

using Clock = std::chrono::steady_clock;

// Waits until a GPU has computed the tensors.
void wait_for_values(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.numel() > 0) (void)tensor.reshape({-1})[0].item();
  }
}

Tensors leaves_of(const Tensors& inputs) {
  Tensors leaves;
  for (const at::Tensor& input : inputs)
    leaves.push_back(input.detach().requires_grad_(input.is_floating_point()));
  return leaves;
}

Tensors those_that_require_grad(const Tensors& tensors) {
  Tensors found;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.requires_grad()) found.push_back(tensor);
  }
  return found;
}

double seconds_of(const PipelineLayer& layer, const Tensors& inputs, Tensors& outputs) {
  const auto begin = Clock::now();
  const Tensors leaves = leaves_of(inputs);
  outputs = layer.forward(leaves);
  const Tensors roots = those_that_require_grad(outputs);
  Tensors wanted = those_that_require_grad(leaves);
  for (const at::Tensor& tensor : those_that_require_grad(layer.tensors)) wanted.push_back(tensor);
  if (roots.empty() || wanted.empty()) {
    wait_for_values(outputs);
  } else {
    Tensors seeds;
    for (const at::Tensor& root : roots) seeds.push_back(at::ones_like(root));
    wait_for_values(torch::autograd::grad(roots, wanted, seeds, /*retain_graph=*/false,
                                          /*create_graph=*/false, /*allow_unused=*/true));
  }
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

std::vector<double> measure_layers(const std::vector<PipelineLayer>& layers, const MicroBatch& batch,
                                   Communicator& communicator, int repeats) {
  const at::Tensor seconds = at::zeros({static_cast<int64_t>(layers.size())}, at::kDouble);
  double* data = seconds.mutable_data_ptr<double>();
  on_all_ranks(communicator, "the measurement of layers", [&] {
    if (communicator.rank() > 0) return;
    Tensors inputs = batch.inputs;
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      std::vector<double> times(static_cast<size_t>(std::max(repeats, 1)));
      Tensors outputs;
      for (double& time : times) time = seconds_of(layers[layer], inputs, outputs);
      std::ranges::sort(times);
      data[layer] = times[times.size() / 2];
      inputs = outputs;
    }
  });
  communicator.broadcast(seconds, 0, "seconds of layers")->wait();
  return {data, data + layers.size()};
}

}  // namespace zerorun
