// How gradients leave: from autograd's hooks into bucket buffers, and summed over ranks into what the
// optimizer reads. Owned by the engine; hooks run in whichever threads autograd uses, all else in the thread
// that calls backward.
//
// [Note: departure] A bucket departs (its reduce-scatter starts) when each of its parameters has had as many
// gradients as any backward so far has brought it, at least one, and all buckets before it in the plan have
// departed. So all ranks start collectives in the same order, whatever order gradients arrive in. The rest
// departs when backward ends; what got no gradient counts as zeros. The first backward follows the layout;
// then the plan is made: rank 0's order of completion, with the buckets that some rank found unused or used
// more than once last, so that they hold back no other.
//
// [Note: late gradients] A hook may still fire for a bucket that has departed: a parameter recomputed in
// backward for the first time, or at stages 0 and 1 a second backward in the boundary micro-step. Such a
// gradient goes to the bucket's late buffer. At the boundary ranks agree (one all-reduce that is there
// anyway) which buckets have late gradients anywhere, and reduce_late() adds those in.
//
// [Note: scaling] Nothing scales gradients on their way. The seed of backward carries what belongs before the
// sum over ranks (accumulation, predivision), one division in the optimizer pass the rest (ranks, clipping).
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "zero/buckets.h"
#include "zero/buffer_pool.h"
#include "zero/stage.h"

namespace zerorun {

class GradientReducer {
 public:
  /// `overlap`: collectives travel while backward goes on (else each is waited for at once). All arguments
  /// outlive it.
  GradientReducer(const Buckets& buckets, Communicator& communicator, StagePolicy policy, bool overlap);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// `boundary`: this backward belongs to the last micro-step before an optimizer step.
  void start_backward(bool boundary);
  void finish_backward();
  /// After a backward that threw: hooks stop collecting.
  void abandon_backward() { in_backward_ = false; }

  /// Waits until every departed bucket's sums are there.
  void finish_reduction();
  bool has_late(int bucket) const { return states_[bucket].late.defined(); }
  /// Adds the late gradients of `bucket` from all ranks. A collective: all ranks call it for the same buckets
  /// in turn.
  void reduce_late(int bucket);
  /// Sums over ranks of the bucket's gradients since the last step: this rank's slice, or all of it when the
  /// stage replicates the update. The optimizer may overwrite it.
  const at::Tensor& gradient(int bucket) const { return states_[bucket].reduced; }
  /// After the optimizer step: what comes next starts from zero.
  void start_window();

  /// The first parameter whose gradient arrived outside start_backward .. finish_backward, if any.
  std::optional<int> bypassed() const { return bypassed_; }

  int64_t gradient_bytes() const;
  int64_t buffer_bytes() const;

 private:
  struct Hook;

  struct BucketState {
    at::Tensor buffer;         // gradients of this rank; between uses undefined where buffers are pooled
    at::Tensor reduced;        // sums over ranks
    bool has_sums = false;     // `reduced` holds sums of this window
    int missing = 0;           // parameters that this backward is expected to bring more gradients for
    bool departed = false;     // further gradients are late
    at::Tensor late;           // defined only while it holds late gradients
    int64_t completed_at = 0;  // position of the last gradient within the planning backward
  };
  struct ParameterState {
    int arrivals = 0;  // gradients in this backward
    int expected = 1;  // the most that any backward has brought
    bool written =
        false;  // the buffer holds a gradient of this window (of this backward where buffers are pooled)
  };
  struct Flight {
    int bucket;
    std::unique_ptr<Work> work;
    bool is_gather;
    at::Tensor buffer;  // keeps a pooled buffer until the sums are there
    at::Tensor addend;  // own slice to add to sums of earlier micro-steps; undefined when reduced in place
  };

  int slack() const;
  void on_gradient(int parameter, const at::Tensor& tensor);
  void place(int parameter, const at::Tensor& gradient);
  void depart_ready();
  void depart(int bucket);
  void retire_oldest();
  void retire_one_reduction();
  void make_plan();

  const Buckets* buckets_;
  Communicator* communicator_;
  StagePolicy policy_;
  bool overlap_;
  BufferPool pool_;
  std::vector<BucketState> states_;
  std::vector<ParameterState> parameters_;
  std::deque<Flight> flights_;
  int reductions_in_flight_ = 0;

  /// What the hooks hold: null once this reducer has gone, should somebody else still hold a hook.
  std::shared_ptr<GradientReducer*> self_;

  std::vector<int> plan_;    // buckets in order of departure
  bool planned_ = false;     // false: the order of the layout, at the end of backward
  size_t next_in_plan_ = 0;  // position of the next bucket to depart
  int64_t arrival_count_ = 0;

  std::mutex hooks_;  // held while a gradient is taken in
  bool in_backward_ = false;
  bool reducing_ = false;
  std::optional<int> bypassed_;
};

}  // namespace zerorun
