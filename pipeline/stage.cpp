#include "pipeline/stage.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "activations/recomputed_block.h"
#include "base/error.h"
#include "base/timeline.h"

namespace zerorun {
namespace {

// Hands a received activation to the layers as a tensor that is no leaf, so that they may write to it in
// place, as they may to the output of a layer before.
struct Arrival : torch::autograd::Function<Arrival> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& leaf) {
    return leaf.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return gradients;
  }
};

// Runs a function of the program. Says in which layer it has thrown and what the layer was given.
template <typename Function>
auto run_in(const std::string& place, const Tensors& given, const std::string& giver,
            const Function& function) {
  const auto context = [&] { return "in " + place + ", which " + giver + " gives " + describe(given); };
  try {
    return function();
  } catch (c10::Error& error) {
    error.add_context(context());
    throw;
  } catch (const CommError&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw UserError(std::string(error.what()) + " (" + context() + ")");
  } catch (const std::logic_error& error) {
    throw UserError(std::string(error.what()) + " (" + context() + ")");
  }
}

// Whether one of the layers has a parameter that is trained.
bool any_trains(std::span<const PipelineLayer> layers) {
  return std::ranges::any_of(layers, [](const PipelineLayer& layer) {
    return std::ranges::any_of(layer.tensors, [](const at::Tensor& each) { return each.requires_grad(); });
  });
}

void check_output(const at::Tensor& tensor, const std::string& layer, c10::Device device) {
  if (!tensor.defined()) throw UserError(layer + " has returned an undefined tensor");
  const bool is_dense = tensor.layout() == at::kStrided;
  if (is_dense && tensor.device() == device) return;
  throw UserError(layer + " has returned a tensor that is " +
                  (is_dense ? "on " + tensor.device().str() + ", expected one on " + device.str()
                            : std::string("not dense")) +
                  ": layers of a pipeline pass dense tensors on the engine's device");
}

}  // namespace

PipelineStage::PipelineStage(std::vector<PipelineLayer> layers, std::string behind,
                             std::function<at::Tensor(const Tensors&, const Tensors&)> loss,
                             Communicator& ranks, const ForwardOptions& options)
    : layers_(std::move(layers)),
      autocast_(options.autocast),
      behind_(std::move(behind)),
      loss_(std::move(loss)),
      ranks_(&ranks),
      stage_(ranks.rank()),
      stages_(ranks.world_size()),
      training_{{ranks, stage_ - 1}, {ranks, stage_ + 1}},
      evaluation_{{ranks, stage_ - 1}, {ranks, stage_ + 1}} {
  std::vector<std::pair<int, int>> pairs;
  for (int stage = 0; stage + 1 < stages_; ++stage) {
    pairs.emplace_back(stage, stage + 1);
    pairs.emplace_back(stage + 1, stage);
  }
  ranks.open_messages(pairs);
  const size_t length = options.recomputation
                            ? static_cast<size_t>(std::max<int64_t>(options.recomputed_group, 1))
                            : layers_.size();
  for (size_t begin = 0; begin < layers_.size(); begin += length) {
    Group& added = groups_.emplace_back(Group{begin, std::min(begin + length, layers_.size()), nullptr});
    if (!options.recomputation) continue;
    const std::span<const PipelineLayer> its(&layers_[begin], added.end - begin);
    const std::string name = its.size() == 1 ? its[0].name : its.front().name + " to " + its.back().name;
    Tensors parameters;
    for (const PipelineLayer& layer : its) {
      std::ranges::copy_if(layer.tensors, std::back_inserter(parameters),
                           [](const at::Tensor& tensor) { return tensor.requires_grad(); });
    }
    added.block = std::make_shared<const Block>(
        Block{.name = name, .recomputation = options.recomputation, .parameters = std::move(parameters)});
  }
}

std::string PipelineStage::label(const char* what, int micro_batch, int from, int to) const {
  return std::string(what) + " of micro-batch " + std::to_string(micro_batch + 1) + " of " +
         std::to_string(count_) + ", stage " + std::to_string(from) + " to " + std::to_string(to);
}

Tensors PipelineStage::run_layers(Tensors tensors) const {
  std::string giver = is_first() ? "the micro-batch" : "layer " + behind_;
  for (const auto& [begin, end, block] : groups_) {
    const auto run = [this, begin = begin, end = end, giver](const Tensors& inputs) {
      return run_group(begin, end, giver, inputs);
    };
    tensors = block ? run_block(block, run, tensors) : run(tensors);
    giver = "layer " + layers_[end - 1].name;
  }
  return tensors;
}

Tensors PipelineStage::run_group(size_t begin, size_t end, std::string giver, Tensors tensors) const {
  for (size_t index = begin; index < end; ++index) {
    const PipelineLayer& layer = layers_[index];
    const std::string name = "layer " + layer.name;
    tensors = run_in(name + " of pipeline stage " + std::to_string(stage_), tensors, giver,
                     [&] { return layer.forward(tensors); });
    for (const at::Tensor& tensor : tensors) check_output(tensor, name, ranks_->device().location());
    giver = name;
  }
  return tensors;
}

at::Tensor PipelineStage::loss_of(const Tensors& outputs, const MicroBatch& batch) const {
  const at::Tensor loss = run_in("the loss of the pipeline", outputs, "layer " + layers_.back().name,
                                 [&] { return loss_(outputs, batch.labels); });
  if (loss.defined() && loss.numel() == 1) return loss;
  throw UserError("Pipeline::loss must return a tensor of one element, found " + describe({loss}));
}

void PipelineStage::post(Activations& activations, const PipelineAction& action, InFlight& flight) {
  const int index = action.micro_batch;
  if (action.is_forward) {
    if (!is_first()) activations.from.expect(label("activations", index, stage_ - 1, stage_));
  } else if (!is_last()) {
    flight.arriving = expect_tensors(*ranks_, stage_ + 1, facts_of(flight.outputs),
                                     label("gradients", index, stage_ + 1, stage_), flight.works);
  }
}

void PipelineStage::arrive(Activations& activations, const PipelineAction& action, InFlight& flight) {
  if (!action.is_forward) {
    wait_for(flight.works);
  } else if (!is_first()) {
    flight.received = activations.from.take();
  }
}

// What the layers are given of a micro-batch. Whatever they do to it, gradients go back for those activations
// that required grad where they come from.
Tensors PipelineStage::inputs_of(const Activations& activations, const MicroBatch& batch,
                                 InFlight& flight) const {
  if (is_first()) return batch.inputs;
  Tensors inputs = std::exchange(flight.received, {});
  for (size_t index = 0; index < inputs.size(); ++index) {
    if (!activations.from.facts()[index].requires_grad) continue;
    flight.leaves.push_back(inputs[index].requires_grad_(true));
    inputs[index] = Arrival::apply(inputs[index]);
  }
  return inputs;
}

void PipelineStage::compute(Activations& activations, const MicroBatch& batch, int micro_batch,
                            InFlight& flight) {
  const AutocastScope autocast(autocast_());
  flight.outputs = run_layers(inputs_of(activations, batch, flight));
  if (is_last()) {
    flight.outputs = {loss_of(flight.outputs, batch)};
    const bool goes_back = any_trains(layers_) || !flight.leaves.empty();
    if (c10::GradMode::is_enabled() && goes_back && !flight.outputs[0].requires_grad()) {
      throw UserError(
          "the loss of the pipeline does not require grad, so that nothing would be trained: compute it from "
          "the outputs of layer " +
          layers_.back().name + " without detach() and with autograd on");
    }
  } else {
    activations.to.send(flight.outputs, label("activations", micro_batch, stage_, stage_ + 1));
  }
}

void PipelineStage::propagate(InFlight& flight, int micro_batch, const Backward& backward) {
  backward(flight.outputs, flight.arriving);
  Tensors gradients;
  for (const at::Tensor& leaf : flight.leaves) {
    gradients.push_back(leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf));
  }
  if (!is_first())
    send_tensors(*ranks_, stage_ - 1, gradients, label("gradients", micro_batch, stage_, stage_ - 1));
  flight = {};
}

at::Tensor PipelineStage::no_loss() const {
  return at::zeros({}, at::TensorOptions(at::kDouble).device(ranks_->device().location()));
}

at::Tensor PipelineStage::train(std::span<const MicroBatch> batches, const Backward& backward) {
  count_ = batches.size();
  const auto count = static_cast<int>(count_);
  const std::vector<PipelineAction> actions = one_forward_one_backward(stage_, stages_, count);
  std::vector<InFlight> flights(batches.size());
  at::Tensor loss = no_loss();
  post(training_, actions.front(), flights.front());
  for (auto action = actions.begin(); action != actions.end(); ++action) {
    const int index = action->micro_batch;
    InFlight& flight = flights[index];
    arrive(training_, *action, flight);
    const auto next = action + 1;
    const bool has_next = next != actions.end();
    const bool is_same = has_next && next->micro_batch == index;  // the shapes of gradients are not known yet
    if (has_next && !is_same) post(training_, *next, flights[next->micro_batch]);
    if (!action->is_forward) {
      const TimelineSpan span(TimelineName::micro_backward, index);
      propagate(flight, index, backward);
      continue;
    }
    const TimelineSpan span(TimelineName::micro_forward, index);
    compute(training_, batches[index], index, flight);
    if (is_last()) loss += flight.outputs[0].detach().reshape({}).to(loss.options()) / count;
    // Of outputs that do not require grad no gradients come.
    std::erase_if(flight.outputs, [](const at::Tensor& output) { return !output.requires_grad(); });
    if (is_same) post(training_, *next, flight);
  }
  return loss;
}

at::Tensor PipelineStage::evaluate(std::span<const MicroBatch> batches) {
  const c10::AutoGradMode no_grad(false);
  count_ = batches.size();
  const auto count = static_cast<int>(count_);
  at::Tensor loss = no_loss();
  InFlight flight;
  post(evaluation_, {true, 0}, flight);
  for (int index = 0; index < count; ++index) {
    arrive(evaluation_, {true, index}, flight);
    if (index + 1 < count) post(evaluation_, {true, index + 1}, flight);
    compute(evaluation_, batches[index], index, flight);
    if (is_last()) loss += flight.outputs[0].reshape({}).to(loss.options()) / count;
    flight = {};
  }
  return loss;
}

}  // namespace zerorun
