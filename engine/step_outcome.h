// The outcome of an optimizer step: the gradient norm, the divisor of the gradients, and which gradient is
// not finite, if any. Computed on the gradients' device, the same on every rank of the job; the host receives
// it later. Owned by EngineState, used by its thread.
//
// [Note: counted once] The norm is that of the whole model: each data group adds the squares of the
// parameters that it counts (BucketLayout::counted). Whether values are finite is looked at everywhere, so
// all data groups skip a step together. The ranks' sums are added in the order of the job's ranks and the
// others are zeros, so a data group that counts everything has the bits of a job of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "comm/mesh.h"
#include "device/device.h"
#include "zero/buckets.h"
#include "zero/gradient_reducer.h"

namespace zerorun {

class StepOutcome {
 public:
  /// All arguments must outlive this object. `communication`: the dtype in which gradients are sent.
  StepOutcome(const SliceStore& store, const Buckets& buckets, const GradientReducer& reducer,
              const Mesh& mesh, Dtype communication);

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
  /// After await_facts(), on all ranks: if the step is skipped because of another data group, gets the name
  /// of the parameter from it, for not_finite(). A collective if so.
  void ask_for_name();
  /// To be called if step() does not update: applied() is then false.
  void set_not_applied() { applied_ = false; }

  // The results that the last await_facts() has read.
  double norm() const { return norm_; }  // infinite if a gradient is not finite
  bool applied() const { return applied_; }
  /// A text that names the gradient that was infinite or NaN; empty if none was. Of another data group it
  /// names only the rank, until ask_for_name().
  const std::string& not_finite() const { return not_finite_; }

 private:
  /// Finite checks number the elements of the buckets' sums over ranks. Returns the number of the first
  /// element of `rank`'s slice of the bucket ([Note: finite checks] in device/step_facts.h).
  int64_t sum_number(int bucket, int rank) const;
  const std::string& parameter_of_sum(int64_t number) const;
  /// Where a value is not finite: on which rank of the job, in a gradient or in a sum over ranks, and its
  /// number, which only that rank's data group can read.
  struct Culprit {
    int rank;
    bool is_gradient;
    int64_t number;
  };
  Culprit find_culprit(std::span<const double> gradients, std::span<const double> sums) const;
  bool is_in_own_group(int rank) const;
  std::string name_of(const Culprit& culprit) const;

  const SliceStore* store_;
  const Buckets* buckets_;
  const GradientReducer* reducer_;
  const Mesh* mesh_;
  Device* device_;
  Dtype communication_;
  std::vector<int64_t> first_sums_;  // by bucket: sum_number() of rank 0's slice
  at::Tensor exchange_;              // [Note: exchange] in device/step_facts.h
  at::Tensor on_host_;               // the copy of exchange_ in host memory
  Event measured_;
  Event copied_;
  double norm_ = 0;
  bool applied_ = false;
  std::optional<Culprit> culprit_;  // set if the step is skipped
  std::string not_finite_;
};

}  // namespace zerorun
