// Reduces gradients: autograd's hooks copy them into bucket buffers, which are summed over ranks into the
// gradients that the optimizer reads. Owned by the engine; hooks run on autograd's threads, everything else
// on the thread that calls backward.
//
// [Note: order of reductions] The reduce-scatter of a bucket starts when each of its parameters has had as
// many gradients as in any backward so far, at least one, and the reduce-scatters of all buckets before it in
// the plan have started. So all ranks start collectives in the same order, whatever order gradients arrive
// in. The remaining buckets follow when backward ends; parameters without a gradient count as zeros. The
// first backward goes from the last parameter to the first. Then the plan is made: rank 0's order of
// completion, but buckets that some rank found unused, or used more than once, come last, so that no bucket
// waits for them.
//
// [Note: late gradients] A hook may still fire for a bucket whose reduction has started: a parameter
// recomputed in backward for the first time, or at stages 0 and 1 a second backward in the boundary
// micro-step. Such a gradient goes to the bucket's late buffer. At the boundary the ranks exchange (between
// hosts' CPUs, so that no host waits for its GPU) which buckets have late gradients on any rank, and
// reduce_late() adds those.
//
// [Note: dtypes of gradients] Gradients are sent in the communication dtype and summed over micro-steps in
// the accumulation dtype. At stages 2 and 3 hooks write to pooled communication buffers, and the reduced
// gradients are added to this rank's slice. At stages 0 and 1 hooks write to a buffer of the whole bucket,
// which is reduced itself; if gradients are summed over micro-steps in another dtype than the communication
// dtype, hooks write to a separate buffer of sums, which is copied into a pooled communication buffer.
//
// [Note: scaling] The gradient that seeds engine.backward() contains the loss scale and the division by
// accumulation steps; gradients of a plain loss.backward() are multiplied as they are copied. Any other
// factor before the sum over ranks is applied in the copy to the communication buffer; one division in the
// optimizer pass does the rest (world size, loss scale, clipping).
//
// [Note: not finite] Gradients are checked as they are copied. The tally keeps the first gradient of a window
// (the micro-steps of one gradient accumulation) that is infinite or NaN, because the sum over ranks does not
// show which gradient that was.
//
// [Note: streams of gradients] A hook writes on its current stream, once the buffer is free. The start of a
// reduction waits for all streams that wrote; all further work is on the reduce stream, which records when
// the buffer is free again, and readers of the sums wait for that stream. If the host applies the sums, the
// copy stream copies them to the host as soon as they are complete, during backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "comm/communicator.h"
#include "device/stream_users.h"
#include "zero/buckets.h"
#include "zero/buffer_pool.h"
#include "zero/reduction_plan.h"
#include "zero/stage.h"

namespace zerorun {

struct ReducerOptions {
  StagePolicy policy;
  bool overlap = false;  // collectives run while backward goes on (else each is waited for at once)
  Dtype communication = Dtype::fp32;
  Dtype accumulation = Dtype::fp32;
  bool accumulates = false;  // some backwards of a window are not at the boundary
  float factor = 1;          // gradients are multiplied by it before they are summed over ranks
  bool to_host = false;      // this rank's slices of a window's sums are copied to the host
};

/// The state of an unfinished window, apart from the gradients in the store.
struct WindowSoFar {
  std::vector<char> has_gradient;  // by trained parameter
  int64_t arrivals = 0;            // gradients that this rank's hooks have taken in
  std::vector<uint8_t> tally;      // bytes of a Tally: the first of them that was not finite
};

class GradientReducer {
 public:
  /// `buckets`, `store` and `communicator` must outlive it; `store` keeps the sums over ranks.
  GradientReducer(const Buckets& buckets, SliceStore& store, Communicator& communicator,
                  const ReducerOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// `boundary`: this backward belongs to the last micro-step before an optimizer step; if no backward does,
  /// finish_window() reduces. `scale`: multiplies its gradients. Throws what allocation throws; then no
  /// backward has started.
  void start_backward(bool boundary, float scale = 1);
  void finish_backward();
  /// After a backward that threw: hooks stop collecting. discard_window() must follow.
  void abandon_backward() {
    if (std::exchange(in_backward_, false)) is_abandoned_ = true;
  }
  /// `observer` is called before each gradient that arrives outside of start_backward() ..
  /// finish_backward(), and in backwards that it has started itself, on autograd's thread. If it starts none,
  /// the gradient stays in grad().
  void set_observer(std::function<void()> observer) { observer_ = std::move(observer); }

  /// Call this at the boundary on all ranks. Completes the sums of every bucket, late gradients included, for
  /// later work on the current stream. Returns how many ranks passed `notice`, which costs no message of its
  /// own.
  int64_t finish_window(bool notice = false);
  /// Sums over ranks of the bucket's gradients since the last step: this rank's slice, or all of it when the
  /// stage replicates the update. Always the same tensor; the optimizer may overwrite it.
  const at::Tensor& gradient(int bucket) const;
  /// This rank's slice of the sums in host memory, if `to_host`: after finish_window() the copy stream is
  /// writing them.
  const at::Tensor& on_host(int bucket) const { return states_[bucket].on_host; }
  /// Call this after the optimizer step, on its stream: the next window's sums start from zero.
  void start_window();
  /// Drops all gradients since the last optimizer step. If a backward has started and not finished (it
  /// threw), first runs the reductions that it still owes, so that ranks stay in step.
  void discard_window();

  /// Between micro-steps: the state of the window. When this returns, no collective is in flight, and the
  /// store's gradients belong to the window (at stages 0 and 1 they are this rank's, not summed over ranks).
  /// Throws UserError if some gradients are not in the store: late ones, and those of a window with more
  /// backwards than the config says.
  WindowSoFar window_so_far();
  /// Resumes a window; the store must have its gradients, and zeros for parameters that had none.
  void resume_window(const WindowSoFar& window);
  /// Whether the store's gradients are summed over ranks with each micro-step.
  bool reduces_every_backward() const { return options_.policy.reduce_every_backward; }
  /// The store's gradients are multiplied by it before they are summed over ranks.
  float factor() const { return options_.factor; }

  /// A Tally on the device. Numbers of gradients rise with their arrival, so ranks that run the same model
  /// can compare them; not_finite() returns the parameter for a number.
  const at::Tensor& tally() const { return tally_; }
  struct NotFinite {
    int parameter;
    bool too_large;  // it was finite, but not in the communication dtype
  };
  NotFinite not_finite(int64_t number) const;

  Dtype gradient_dtype() const;  // of gradient()
  /// Bytes of the buffers that gradients pass through.
  int64_t buffer_bytes() const;

 private:
  struct Hook;

  struct BucketState {
    CommunicationBuffer buffer;  // gradients to reduce; if pooled, without memory between uses
    StreamUsers writers;         // streams that have written gradients of the bucket since its last reduction
    Event complete;              // its reduction may start
    at::Tensor sums;             // of this rank over micro-steps, if not kept in `buffer`
    bool has_sums = false;       // gradient(bucket) holds sums of the current window
    bool reduction_started = false;  // further gradients are late
    at::Tensor late;                 // defined only while it holds late gradients
    at::Tensor on_host;              // defined only if `to_host`
    bool is_sent = false;            // the sums of the current window are on the host, or being copied there
    Event summed;                    // gradient(bucket) may be copied to the host
    Event left;                      // the last copy to the host is complete
  };
  struct PendingReduction {
    int bucket;
    std::unique_ptr<Work> work;
    bool is_gather;
    CommunicationBuffer buffer;  // what is reduced or gathered
    at::Tensor arrived;  // sums over ranks that are to go to gradient(); undefined if they are in it already
    bool is_first;       // they replace its values (else: are added)
  };

  int slack() const;
  /// Sums over micro-steps are kept apart from communication buffers, and gradient() is in these sums.
  bool reduced_in_sums() const;
  /// Communication buffers are taken from the pool.
  bool pooled() const { return options_.policy.reduce_every_backward || reduced_in_sums(); }
  /// Buffers that are sent to other ranks, and buffers that are not.
  at::Tensor allocate(int64_t numel, Dtype dtype);
  at::Tensor allocate_own(int64_t numel, Dtype dtype);
  void make_memory(int bucket);
  void make_sums();
  void on_gradient(int parameter, const at::Tensor& tensor);
  void place(int parameter, const at::Tensor& gradient);
  FiniteCheck finite_check(int parameter) const;
  void take_buffer(int bucket);
  void start_writing(BucketState& state);
  void complete_buffer(int bucket);
  void start_ready_reductions();
  void start_reduction(int bucket);
  void start_remaining_reductions();
  void retire_oldest();
  void retire_one_reduction();
  void finish_reduction();
  void reduce_late(int bucket);
  void start_summing(int bucket);
  void send_to_host(int bucket);

  const Buckets* buckets_;
  SliceStore* store_;
  Communicator* communicator_;
  Device* device_;
  Streams* streams_;
  ReducerOptions options_;
  BufferPool pool_;
  std::vector<BucketState> states_;
  std::vector<char> written_;  // by parameter: has a gradient since the last reduction
  std::deque<PendingReduction> pending_;
  int reductions_in_flight_ = 0;
  Event reduced_;
  Event consumed_;  // the last window's update has read its sums
  at::Tensor tally_;
  at::Tensor late_counts_;  // by bucket: ranks that have late gradients for it, then notices; on the CPU

  /// The hooks hold this pointer; it points to null once the reducer is destroyed, in case a hook lives on.
  std::shared_ptr<GradientReducer*> self_;

  ReductionPlan plan_;

  std::mutex hooks_;  // held while a hook takes in a gradient
  std::function<void()> observer_;
  bool in_backward_ = false;
  bool is_observed_ = false;  // the observer has started this backward
  bool is_abandoned_ = false;
  float scale_ = 1;  // of this backward's gradients
  bool reducing_ = false;
  bool at_boundary_ = false;
  int64_t window_arrivals_ = 0;
};

}  // namespace zerorun
