// The outcome of an optimizer step: the gradient norm, the divisor of the gradients, and which gradient is
// not finite, if any. Computed on the gradients' device, the same on every rank; the host receives it later.
// Owned by EngineState, used by its thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "zero/buckets.h"
#include "zero/gradient_reducer.h"

namespace zerorun {

class StepOutcome {
 public:
  /// All arguments must outlive this object. `communication`: the dtype in which gradients are sent.
  StepOutcome(const SliceStore& store, const Buckets& buckets, const GradientReducer& reducer,
              Communicator& communicator, Dtype communication);

  /// Adds the squares of `slice` to this rank's tally. `slice`: this rank's slice of the bucket's gradients,
  /// or of the directions that are applied in their place.
  void add(int bucket, const at::Tensor& slice);
  /// Sums the tallies over ranks, computes the facts, and starts their copy to the host. A collective.
  void all_reduce(const StepRule& rule);
  /// The facts (device/step_facts.h), float64: valid in the device's memory after all_reduce(), in the host's
  /// after await_facts().
  at::Tensor facts(bool on_host) const;
  /// Waits until the facts are in the host's memory, and reads them.
  void await_facts();
  /// To be called if step() does not update: applied() is then false.
  void set_not_applied() { applied_ = false; }

  // The results that the last await_facts() has read.
  double norm() const { return norm_; }  // infinite if a gradient is not finite
  bool applied() const { return applied_; }
  /// A text that names the gradient that was infinite or NaN; empty if none was.
  const std::string& not_finite() const { return not_finite_; }

 private:
  /// Finite checks number the elements of the buckets' sums over ranks. Returns the number of the first
  /// element of `rank`'s slice of the bucket ([Note: finite checks] in device/step_facts.h).
  int64_t sum_number(int bucket, int rank) const;
  const std::string& parameter_of_sum(int64_t number) const;
  std::string name_not_finite(std::span<const double> gradients, std::span<const double> sums) const;

  const SliceStore* store_;
  const Buckets* buckets_;
  const GradientReducer* reducer_;
  Communicator* communicator_;
  Dtype communication_;
  std::vector<int64_t> first_sums_;  // by bucket: sum_number() of rank 0's slice
  at::Tensor exchange_;              // [Note: exchange] in device/step_facts.h
  at::Tensor on_host_;               // the copy of exchange_ in host memory
  Event measured_;
  Event copied_;
  double norm_ = 0;
  bool applied_ = false;
  std::string not_finite_;
};

}  // namespace zerorun
