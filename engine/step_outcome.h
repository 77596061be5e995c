// What an optimizer step comes to: the norm of the gradient, what gradients are divided by, and whether one
// of them is not finite, and which. Worked out where the gradients are, the same on every rank; the host
// hears of it later. Owned by the engine's state, used by its thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "comm/communicator.h"
#include "device/step_facts.h"
#include "zero/buckets.h"
#include "zero/gradient_reducer.h"

namespace zerorun {

class StepOutcome {
 public:
  /// All arguments outlive it. `communication`: the dtype in which gradients travel.
  StepOutcome(const Buckets& buckets, const GradientReducer& reducer, Communicator& communicator,
              Dtype communication);

  /// Adds the squares of `slice`, this rank's of what is applied to the bucket, to what this rank tells.
  void add(int bucket, const at::Tensor& slice);
  /// Sums up over ranks what has been added: the facts, on their way to the host. A collective.
  void agree(const StepRule& rule);
  /// The facts (device/step_facts.h), float64: in the device's memory from agree() on, in the host's from
  /// hear() on.
  at::Tensor facts(bool on_host) const;
  /// Waits for the facts on the host.
  void hear();
  /// The step is not one that updates.
  void set_not_applied() { applied_ = false; }

  // As heard last.
  double norm() const { return norm_; }  // infinite where a gradient is not finite
  bool applied() const { return applied_; }
  /// Which gradient was infinite or NaN; empty: none.
  const std::string& not_finite() const { return not_finite_; }

 private:
  /// The number of the first element of `rank`'s slice among the sums over ranks of all buckets.
  int64_t sum_number(int bucket, int rank) const;
  const std::string& parameter_of_sum(int64_t number) const;
  std::string name_not_finite(std::span<const double> gradients, std::span<const double> sums) const;

  const Buckets* buckets_;
  const GradientReducer* reducer_;
  Communicator* communicator_;
  Dtype communication_;
  std::vector<int64_t> first_sums_;  // by bucket: the number of its first sum over ranks
  at::Tensor exchange_;              // [Note: exchange] in device/step_facts.h
  at::Tensor told_;                  // its copy in the host's memory
  Event measured_;
  Event copied_;
  double norm_ = 0;
  bool applied_ = false;
  std::string not_finite_;
};

}  // namespace zerorun
