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
// [Note: dtypes of gradients] Gradients travel in the communication dtype and are added up in the
// accumulation dtype. At stages 2 and 3 hooks write to pooled buffers that travel, and what arrives is added
// to this rank's slice. At stages 0 and 1 hooks write to a whole buffer, which travels itself; where
// gradients are to be added up over micro-steps in another dtype than they travel in, hooks write to a buffer
// of sums, which is copied into one that travels.
//
// [Note: scaling] The seed of backward carries the loss scale and the accumulation; what else belongs before
// the sum over ranks is multiplied in on the way into the buffer that travels; one division in the optimizer
// pass does the rest (ranks, loss scale, clipping).
//
// [Note: not finite] A gradient is looked at as it is copied. Each rank remembers the first one of the window
// that is infinite or NaN, so that the sum over ranks, which hides where it came from, need not be searched.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "comm/communicator.h"
#include "zero/buckets.h"
#include "zero/buffer_pool.h"
#include "zero/stage.h"

namespace zerorun {

struct ReducerOptions {
  StagePolicy policy;
  bool overlap = false;  // collectives travel while backward goes on (else each is waited for at once)
  Dtype communication = Dtype::fp32;
  Dtype accumulation = Dtype::fp32;
  bool accumulates = false;  // some backwards of a window are no boundary
  float factor = 1;          // what gradients are multiplied with before they are summed over ranks
};

class GradientReducer {
 public:
  /// All arguments outlive it.
  GradientReducer(const Buckets& buckets, Communicator& communicator, const ReducerOptions& options);
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
  /// stage replicates the update. Always the same tensor; the optimizer may overwrite it.
  const at::Tensor& gradient(int bucket) const { return states_[bucket].reduced; }
  /// After the optimizer step: what comes next starts from zero.
  void start_window();

  /// The first parameter whose gradient arrived outside start_backward .. finish_backward, if any.
  std::optional<int> bypassed() const { return bypassed_; }
  /// The first gradient of this rank since the last step that was not finite. Valid after finish_reduction().
  struct NotFinite {
    int64_t arrival;  // gradients that came before it; ranks that compute the same can compare theirs
    int parameter;
    bool too_large;  // it was finite, but not in the dtype that it was to travel in
  };
  std::optional<NotFinite> not_finite() const { return not_finite_; }

  Dtype gradient_dtype() const;  // of gradient()
  int64_t gradient_bytes() const;
  int64_t buffer_bytes() const;

 private:
  struct Hook;

  struct BucketState {
    at::Tensor buffer;         // gradients that travel; between uses undefined where buffers are pooled
    at::Tensor sums;           // of this rank over micro-steps, where those do not travel themselves
    at::Tensor reduced;        // sums over ranks
    bool has_sums = false;     // `reduced` holds sums of this window
    int missing = 0;           // parameters that this backward is expected to bring more gradients for
    bool departed = false;     // further gradients are late
    at::Tensor late;           // defined only while it holds late gradients
    int64_t completed_at = 0;  // position of the last gradient within the planning backward
  };
  struct ParameterState {
    int arrivals = 0;      // gradients in this backward
    int expected = 1;      // the most that any backward has brought
    bool written = false;  // since the last departure
  };
  struct Flight {
    int bucket;
    std::unique_ptr<Work> work;
    bool is_gather;
    at::Tensor buffer;   // what travels
    at::Tensor arrived;  // where sums over ranks are that belong in `reduced`; undefined when that is there
    bool is_first;       // they replace what is in `reduced` (else: are added)
  };

  int slack() const;
  /// Sums over micro-steps are kept apart from what travels, and `reduced` is in them.
  bool reduced_in_sums() const;
  /// Buffers that travel are taken from the pool.
  bool pooled() const { return options_.policy.reduce_every_backward || reduced_in_sums(); }
  at::Tensor allocate(int64_t numel, Dtype dtype);
  void make_memory(int bucket);
  void make_sums();
  void on_gradient(int parameter, const at::Tensor& tensor);
  void place(int parameter, const at::Tensor& gradient);
  /// `finite`: whether what has been made of `gradient` is.
  void check_finite(bool finite, int parameter, const at::Tensor& gradient);
  void complete_buffer(int bucket);
  void depart_ready();
  void depart(int bucket);
  void retire_oldest();
  void retire_one_reduction();
  void make_plan();

  const Buckets* buckets_;
  Communicator* communicator_;
  ReducerOptions options_;
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
  int64_t window_arrivals_ = 0;
  std::optional<NotFinite> not_finite_;
  std::optional<int> bypassed_;
};

}  // namespace zerorun
