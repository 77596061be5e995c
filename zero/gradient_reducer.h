// Reduces gradients: autograd's hooks write them into bucket buffers, which are summed over ranks into the
// gradients that the optimizer reads. Owned by the engine; hooks run in autograd's threads, everything else
// in the thread that calls backward.
//
// [Note: departure] The reduce-scatter of a bucket starts when each of its parameters has had as many
// gradients as in any backward so far, at least one, and the reduce-scatters of all buckets before it in the
// plan have started. So all ranks start collectives in the same order, whatever order gradients arrive in.
// The remaining buckets follow when backward ends; parameters without a gradient count as zeros. The first
// backward goes from the last parameter to the first. Then the plan is made: rank 0's order of completion,
// but buckets that some rank found unused, or used more than once, come last, so that no bucket waits for
// them.
//
// [Note: late gradients] A hook may still fire for a bucket whose reduction has started: a parameter
// recomputed in backward for the first time, or at stages 0 and 1 a second backward in the boundary
// micro-step. Such a gradient goes to the bucket's late buffer. At the boundary the ranks exchange (between
// hosts' CPUs, so that no host waits for its GPU) which buckets have late gradients on any rank, and
// reduce_late() adds those.
//
// [Note: dtypes of gradients] Gradients are sent in the communication dtype and summed in the accumulation
// dtype. At stages 2 and 3 hooks write to pooled buffers that are sent, and the received sum is added to this
// rank's slice. At stages 0 and 1 hooks write to a whole buffer, which is itself sent; if micro-steps are
// summed in another dtype than the communication dtype, hooks write to a buffer of sums, which is copied into
// a buffer that is sent.
//
// [Note: scaling] The seed of backward carries the loss scale and the accumulation. Further factors that
// belong before the sum over ranks are applied while gradients are copied into the buffer that is sent. One
// division in the optimizer pass does the rest (ranks, loss scale, clipping).
//
// [Note: not finite] Gradients are checked while they are copied. The tally keeps the window's first gradient
// that is infinite or NaN: after the sum over ranks nobody could tell where it came from.
//
// [Note: streams of gradients] A hook writes on its own stream once the buffer is free. A reduce-scatter
// waits for all streams that wrote. From there on everything happens on the reduction stream, which records
// when the buffer is free again; readers of the sums wait for that stream. If the host applies the sums, they
// are copied to it on the copy stream as soon as they are complete, during backward.
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
#include "device/stream_users.h"
#include "zero/buckets.h"
#include "zero/buffer_pool.h"
#include "zero/departure_plan.h"
#include "zero/stage.h"

namespace zerorun {

struct ReducerOptions {
  StagePolicy policy;
  bool overlap = false;  // collectives run during backward (else each is waited for at once)
  Dtype communication = Dtype::fp32;
  Dtype accumulation = Dtype::fp32;
  bool accumulates = false;  // an optimizer step has several micro-steps
  float factor = 1;          // applied to gradients before they are summed over ranks
  bool to_host = false;      // copies this rank's slices of a window's sums to the host
};

/// The state of a window (the micro-steps of one optimizer step) before its end, beside the gradients in the
/// store.
struct WindowSoFar {
  std::vector<char> has_gradient;  // by trained parameter
  int64_t arrivals = 0;            // gradients that this rank's hooks have received
  std::vector<uint8_t> tally;      // the first of them that was not finite
};

class GradientReducer {
 public:
  /// All arguments outlive it; `store` keeps the sums over ranks.
  GradientReducer(const Buckets& buckets, SliceStore& store, Communicator& communicator,
                  const ReducerOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// `boundary`: this backward belongs to the last micro-step before an optimizer step; without such a
  /// backward finish_window() reduces. If an allocation throws, nothing has changed.
  void start_backward(bool boundary);
  void finish_backward();
  /// For a backward that threw: hooks stop collecting.
  void abandon_backward() { in_backward_ = false; }

  /// At the boundary, on all ranks: completes the sums of every bucket, with late gradients, for later work
  /// on the current stream. Returns how many ranks passed `notice`, which costs no message of its own.
  int64_t finish_window(bool notice = false);
  /// Sums over ranks of the bucket's gradients since the last step: this rank's slice, or the whole bucket if
  /// the stage replicates the update. Always the same tensor; the optimizer may overwrite it.
  const at::Tensor& gradient(int bucket) const;
  /// This rank's slice of the sums in host memory, if asked for: finish_window() has enqueued their copies on
  /// the copy stream.
  const at::Tensor& on_host(int bucket) const { return states_[bucket].on_host; }
  /// After the optimizer step on the current stream: the next sums start from zero.
  void start_window();

  /// Between micro-steps: the window so far. No reduction is under way when this returns, and the store has
  /// the window's gradients (at stages 0 and 1 this rank's own, not summed over ranks). Throws UserError if
  /// some gradients are not in the store: those of a window that the config did not announce.
  WindowSoFar window_so_far();
  /// Continues a window; the store has its gradients, and zeros for parameters without one.
  void resume_window(const WindowSoFar& window);
  /// Whether the store's gradients are summed over ranks with each micro-step.
  bool reduces_every_backward() const { return options_.policy.reduce_every_backward; }
  /// The factor applied to the store's gradients before they are summed.
  float factor() const { return options_.factor; }

  /// The first parameter whose gradient arrived outside start_backward .. finish_backward, if any.
  std::optional<int> bypassed() const { return bypassed_; }
  /// A Tally on the device. The number that it holds counts the gradients before, so that ranks can compare
  /// theirs; not_finite() finds the parameter of such a number.
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
    TravelBuffer buffer;    // gradients to send; without memory between uses if buffers are pooled
    StreamUsers writers;    // streams that wrote gradients of the bucket since its last reduction started
    Event complete;         // the buffer has all of this rank's gradients
    at::Tensor sums;        // this rank's over micro-steps, unless the buffer itself has them
    bool has_sums = false;  // gradient() holds sums of this window
    bool departed = false;  // its reduction has started: further gradients are late
    at::Tensor late;        // defined only while it holds late gradients
    at::Tensor on_host;     // defined only if the host applies the sums
    bool is_sent = false;   // the copy of this window's sums to the host is enqueued
    Event summed;
    Event left;  // the last copy to the host is complete
  };
  struct Flight {
    int bucket;
    std::unique_ptr<Work> work;
    bool is_gather;
    TravelBuffer buffer;  // that is sent
    at::Tensor arrived;   // received sums to be moved to gradient(); undefined if received there directly
    bool is_first;        // they replace the content of gradient() (else: are added)
  };

  int slack() const;
  /// Whether sums over micro-steps have a buffer of their own, which gradient() is part of.
  bool reduced_in_sums() const;
  /// Whether buffers to send come from the pool.
  bool pooled() const { return options_.policy.reduce_every_backward || reduced_in_sums(); }
  /// Memory that is sent to other ranks, and memory that is not.
  at::Tensor allocate(int64_t numel, Dtype dtype);
  at::Tensor allocate_own(int64_t numel, Dtype dtype);
  void make_memory(int bucket);
  void make_sums();
  void on_gradient(int parameter, const at::Tensor& tensor);
  void place(int parameter, const at::Tensor& gradient);
  Finding finding(int parameter) const;
  void take_buffer(int bucket);
  void start_writing(BucketState& state);
  void complete_buffer(int bucket);
  void depart_ready();
  void depart(int bucket);
  void depart_rest();
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
  std::vector<char> written_;  // by parameter: since the last reduction of its bucket started
  std::deque<Flight> flights_;
  int reductions_in_flight_ = 0;
  Event reduced_;
  Event consumed_;  // the last window's update has read its sums
  at::Tensor tally_;
  at::Tensor late_counts_;  // by bucket: ranks with late gradients for it, then notices; on the CPU

  /// Held by the hooks: points to null once this reducer is destroyed, in case a hook outlives it.
  std::shared_ptr<GradientReducer*> self_;

  DeparturePlan plan_;

  std::mutex hooks_;  // held while a hook hands over a gradient
  bool in_backward_ = false;
  bool reducing_ = false;
  bool at_boundary_ = false;
  int64_t window_arrivals_ = 0;
  std::optional<int> bypassed_;
};

}  // namespace zerorun
