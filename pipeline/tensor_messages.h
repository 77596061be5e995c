// Lists of tensors that pass between neighbouring pipeline stages as messages (comm/communicator.h). Owned
// by PipelineStage, used by its thread.
//
// [Note: shapes of activations] A sender and its receiver know the shapes, dtypes and requires_grad of the
// last list that passed. With each list goes one number, on the CPU: 0 if the next list is alike. So the
// receiver can post all receives of a list before the sender has computed it. If the list is another, the
// number is the length of its description: the receives that are posted get values of no meaning, and then
// the description and the list follow. Gradients need none of this, because they are like the activations.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "pipeline/layers.h"

namespace zerorun {

struct TensorFacts {
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  bool requires_grad;

  bool operator==(const TensorFacts&) const = default;
};
std::vector<TensorFacts> facts_of(const Tensors& tensors);
/// Returns a text such as "2 tensors (Float [4, 8], Long [4])".
std::string describe(const Tensors& tensors);

/// Sends lists of tensors to one rank.
class TensorSender {
 public:
  TensorSender(Communicator& ranks, int receiver) : ranks_(&ranks), receiver_(receiver) {}

  /// Does not wait for the receiver. `label`: the same on both ranks.
  void send(const Tensors& tensors, const std::string& label);

 private:
  Communicator* ranks_;
  int receiver_;
  std::vector<TensorFacts> facts_;  // of the last list
};

/// Receives the lists of a TensorSender of rank `sender`.
class TensorReceiver {
 public:
  TensorReceiver(Communicator& ranks, int sender) : ranks_(&ranks), sender_(sender) {}

  /// Posts the receives of the next list. take() must follow, before the next expect().
  void expect(const std::string& label);
  /// Waits for the list. Tensors do not require grad; facts() says which did on the sender.
  Tensors take();
  const std::vector<TensorFacts>& facts() const { return facts_; }

 private:
  Communicator* ranks_;
  int sender_;
  std::vector<TensorFacts> facts_;  // of the last list
  std::string label_;
  at::Tensor news_;
  Tensors tensors_;
  std::vector<std::unique_ptr<Work>> works_;
};

/// Sends `tensors` one by one.
void send_tensors(Communicator& ranks, int receiver, const Tensors& tensors, const std::string& label);
/// Posts the receives of tensors of these facts on the communicator's device; `works` must be waited for.
Tensors expect_tensors(Communicator& ranks, int sender, const std::vector<TensorFacts>& facts,
                       const std::string& label, std::vector<std::unique_ptr<Work>>& works);
void wait_for(std::vector<std::unique_ptr<Work>>& works);

}  // namespace zerorun
