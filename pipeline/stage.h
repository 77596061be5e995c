// This rank's stage of a pipeline: runs the forwards and backwards of a window of micro-batches with its
// neighbours. Owned by the engine, used by its thread.
//
// [Note: one window] Stage s runs the actions of schedule.h in order. A forward takes the activations of the
// stage before, as leaves of a graph of its own, and sends its outputs on; a backward takes the gradients of
// these outputs, runs autograd on that graph, and sends the gradients of the leaves back. Receives are posted
// one action before they are needed, and a send does not wait for its receiver. So ranks cannot wait for each
// other in a circle: each action needs only actions that come earlier in the order of 1F1B.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "activations/forward_state.h"
#include "comm/communicator.h"
#include "pipeline/layers.h"
#include "pipeline/schedule.h"
#include "pipeline/tensor_messages.h"

namespace zerorun {

class Recomputation;
struct Block;

/// How layers run.
struct ForwardOptions {
  std::shared_ptr<Recomputation> recomputation = nullptr;  // null: no layer is recomputed
  int64_t recomputed_group = 0;             // layers that are recomputed together; 0: each on its own
  std::function<AutocastState()> autocast;  // as forwards are to have it
};

class PipelineStage {
 public:
  /// Runs autograd from `roots`, if there are any. `gradients` are those of the roots, which contain the loss
  /// scale and the division by the number of micro-batches already; empty if `roots` is the loss of the last
  /// stage.
  using Backward = std::function<void(const Tensors& roots, const Tensors& gradients)>;

  /// `layers`: those of this stage. `behind`: the name of the layer before the first of them, for messages.
  /// `ranks`: the pipeline's, which must outlive this object; its rank is the stage.
  PipelineStage(std::vector<PipelineLayer> layers, std::string behind,
                std::function<at::Tensor(const Tensors&, const Tensors&)> loss, Communicator& ranks,
                const ForwardOptions& options);

  bool is_last() const { return stage_ == stages_ - 1; }

  /// Forwards and backwards of all micro-batches. `backward` is called once for each micro-batch, in their
  /// order; without roots if nothing before or in this stage requires grad. Throws UserError if the loss has
  /// no gradient that could go back. Returns the mean of the micro-batches'
  /// losses, float64 on the device; of other stages than the last one 0.
  at::Tensor train(std::span<const MicroBatch> batches, const Backward& backward);
  /// Only the forwards, without gradients.
  at::Tensor evaluate(std::span<const MicroBatch> batches);

 private:
  // One direction of activations through this stage: in training and in evaluation they may differ.
  struct Activations {
    TensorReceiver from;
    TensorSender to;
  };
  // A micro-batch between its forward and its backward.
  struct InFlight {
    Tensors received;  // the activations, until the layers are given them
    Tensors leaves;    // of these the ones that require grad on the stage before
    Tensors outputs;   // those that were sent, or the loss
    Tensors arriving;  // gradients of the outputs that require grad
    std::vector<std::unique_ptr<Work>> works;
  };

  bool is_first() const { return stage_ == 0; }
  /// Both ranks must have as many micro-batches, so that is in the label too.
  std::string label(const char* what, int micro_batch, int from, int to) const;
  Tensors inputs_of(const Activations& activations, const MicroBatch& batch, InFlight& flight) const;
  /// Posts the receives of what the action needs.
  void post(Activations& activations, const PipelineAction& action, InFlight& flight);
  /// Waits for them.
  void arrive(Activations& activations, const PipelineAction& action, InFlight& flight);
  /// The rest of a forward.
  void compute(Activations& activations, const MicroBatch& batch, int micro_batch, InFlight& flight);
  Tensors run_layers(Tensors tensors) const;
  /// Layers `begin` to `end`. `giver`: who gives the tensors, for messages.
  Tensors run_group(size_t begin, size_t end, std::string giver, Tensors tensors) const;
  at::Tensor loss_of(const Tensors& outputs, const MicroBatch& batch) const;
  /// The rest of a backward.
  void propagate(InFlight& flight, int micro_batch, const Backward& backward);
  at::Tensor no_loss() const;

  // Layers that are recomputed together, or not.
  struct Group {
    size_t begin;
    size_t end;
    std::shared_ptr<const Block> block;  // null: never
  };

  std::vector<PipelineLayer> layers_;
  std::vector<Group> groups_;
  std::function<AutocastState()> autocast_;
  std::string behind_;
  std::function<at::Tensor(const Tensors&, const Tensors&)> loss_;
  Communicator* ranks_;
  int stage_;
  int stages_;
  size_t count_ = 0;  // of the micro-batches of the window
  Activations training_;
  Activations evaluation_;
};

}  // namespace zerorun
