// How gradients leave: from autograd's hooks into bucket buffers, and summed over ranks into what the
// optimizer reads. Owned by the engine; hooks run in whichever threads autograd uses, all else in the thread
// that calls backward.
//
// [Note: departure] A bucket departs (its reduce-scatter starts) when each of its parameters has had as many
// gradients as any backward so far has brought it, at least one, and all buckets before it in the plan have
// departed. So all ranks start collectives in the same order, whatever order gradients arrive in. The rest
// departs when backward ends; what got no gradient counts as zeros. In the first backward
// that is the order of parameters from last to first; then the plan is made: rank 0's order of completion,
// with the buckets that some rank found unused or used more than once last, so that they hold back no other.
//
// [Note: late gradients] A hook may still fire for a bucket that has departed: a parameter recomputed in
// backward for the first time, or at stages 0 and 1 a second backward in the boundary micro-step. Such a
// gradient goes to the bucket's late buffer. At the boundary ranks agree (in a message of their own,
// so that on a GPU nobody waits for the device) which buckets have late gradients anywhere, and reduce_late()
// adds those in.
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
// [Note: not finite] A gradient is looked at as it is copied. The tally keeps the first one of the window
// that is infinite or NaN, so that the sum over ranks, which hides where it came from, need not be searched.
//
// [Note: streams of gradients] A hook writes on the stream it runs on, once the buffer is free. A departure
// waits for all streams that wrote; from there on everything happens on the reduction's stream, which says
// when the buffer is free again, and whoever reads the sums waits for it. Where the host applies the sums,
// they leave on the stream of copies as soon as they are there, under backward.
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
  bool overlap = false;  // collectives travel while backward goes on (else each is waited for at once)
  Dtype communication = Dtype::fp32;
  Dtype accumulation = Dtype::fp32;
  bool accumulates = false;  // some backwards of a window are no boundary
  float factor = 1;          // what gradients are multiplied with before they are summed over ranks
  bool to_host = false;      // this rank's slices of a window's sums are wanted on the host
};

/// What a window that is not at its end has had, beside the gradients in the store.
struct WindowSoFar {
  std::vector<char> has_gradient;  // by trained parameter
  int64_t arrivals = 0;            // gradients that this rank's hooks have taken in
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

  /// `boundary`: this backward belongs to the last micro-step before an optimizer step; where none has said
  /// so, finish_window() reduces. Throws what allocation throws, and has then changed nothing.
  void start_backward(bool boundary);
  void finish_backward();
  /// After a backward that threw: hooks stop collecting.
  void abandon_backward() { in_backward_ = false; }

  /// At the boundary, on all ranks: the sums of every bucket are there, late gradients among them, for what
  /// runs on the current stream from now on. Returns how many ranks have said `notice`, which travels with
  /// what they agree on anyway.
  int64_t finish_window(bool notice = false);
  /// Sums over ranks of the bucket's gradients since the last step: this rank's slice, or all of it when the
  /// stage replicates the update. Always the same tensor; the optimizer may overwrite it.
  const at::Tensor& gradient(int bucket) const;
  /// This rank's slice of them in the host's memory, where that is wanted: behind finish_window() they are
  /// on their way there on the stream of copies.
  const at::Tensor& on_host(int bucket) const { return states_[bucket].on_host; }
  /// After the optimizer step on the current stream: what comes next starts from zero.
  void start_window();

  /// Among micro-steps: what there is so far. Nothing travels when this returns, and the store's gradients
  /// belong to it (at stages 0 and 1 they are this rank's, not summed over ranks). Throws UserError where
  /// some gradients are elsewhere: those of a window that no config announced.
  WindowSoFar window_so_far();
  /// Goes on with a window; the store has its gradients, and zeros for parameters that had none.
  void resume_window(const WindowSoFar& window);
  /// Whether the store's gradients are summed over ranks with each micro-step.
  bool reduces_every_backward() const { return options_.policy.reduce_every_backward; }
  /// What the store's gradients are multiplied with before they are summed.
  float factor() const { return options_.factor; }

  /// The first parameter whose gradient arrived outside start_backward .. finish_backward, if any.
  std::optional<int> bypassed() const { return bypassed_; }
  /// A Tally on the device. The number of its gradient says how many came before, so that ranks that compute
  /// the same can compare theirs; this says whose it was.
  const at::Tensor& tally() const { return tally_; }
  struct NotFinite {
    int parameter;
    bool too_large;  // it was finite, but not in the dtype that it was to travel in
  };
  NotFinite not_finite(int64_t number) const;

  Dtype gradient_dtype() const;  // of gradient()
  /// Of buffers that gradients pass through.
  int64_t buffer_bytes() const;

 private:
  struct Hook;

  struct BucketState {
    TravelBuffer buffer;    // gradients that travel; between uses without memory where buffers are pooled
    StreamUsers writers;    // streams that have written gradients of the bucket since its last departure
    Event complete;         // the buffer, for departure
    at::Tensor sums;        // of this rank over micro-steps, where those do not travel themselves
    bool has_sums = false;  // its gradient() holds sums of this window
    bool departed = false;  // further gradients are late
    at::Tensor late;        // defined only while it holds late gradients
    at::Tensor on_host;     // defined only where the host wants the sums
    bool is_sent = false;   // those of this window are there, or on their way
    Event summed;
    Event left;  // what was sent last is there
  };
  struct Flight {
    int bucket;
    std::unique_ptr<Work> work;
    bool is_gather;
    TravelBuffer buffer;  // what travels
    at::Tensor arrived;  // where sums over ranks are that belong in gradient(); undefined when they are there
    bool is_first;       // they replace what is there (else: are added)
  };

  int slack() const;
  /// Sums over micro-steps are kept apart from what travels, and gradient() is in them.
  bool reduced_in_sums() const;
  /// Buffers that travel are taken from the pool.
  bool pooled() const { return options_.policy.reduce_every_backward || reduced_in_sums(); }
  /// Memory that travels, and such that does not.
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
  std::vector<char> written_;  // by parameter: since the last departure
  std::deque<Flight> flights_;
  int reductions_in_flight_ = 0;
  Event reduced_;
  Event consumed_;  // the sums of the last window, by its update
  at::Tensor tally_;
  at::Tensor late_counts_;  // by bucket: ranks that have late gradients for it, then notices; on the CPU

  /// What the hooks hold: null once this reducer has gone, should somebody else still hold a hook.
  std::shared_ptr<GradientReducer*> self_;

  DeparturePlan plan_;

  std::mutex hooks_;  // held while a gradient is taken in
  bool in_backward_ = false;
  bool reducing_ = false;
  bool at_boundary_ = false;
  int64_t window_arrivals_ = 0;
  std::optional<int> bypassed_;
};

}  // namespace zerorun
