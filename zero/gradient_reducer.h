// Reduces gradients. Hooks of autograd copy gradients into bucket buffers, and the buffers are summed over
// ranks into the gradients that the optimizer reads. Owned by the engine. Hooks run on autograd's threads,
// everything else on the thread that calls backward.
//
// [Note: order of reductions] All ranks start the same reduce-scatters in the same order, whatever order
// gradients arrive in, because the order is planned. A bucket's reduce-scatter starts when the
// reduce-scatters of all earlier buckets in the plan have started and the bucket is complete: each parameter
// has got its expected number of gradients, which is the largest number that it got in one earlier backward,
// but at least one. The end of backward starts the remaining reduce-scatters, and parameters without a
// gradient count as zeros. In the first backward the order is from the last parameter to the first. Then the
// plan takes the order in which buckets were complete on rank 0. Buckets that some rank did not use, or used
// more than once, come last in the plan, so that no other bucket waits for them.
//
// [Note: order of gathers and reductions] If parameters come and go, backward also gathers, and a bucket may
// be complete before a gather on one rank and after it on another. Then all ranks start reduce-scatters only
// at the uses of parameters that come and go, which are the same on all ranks (zero/use_observer.h), so that
// gathers and reduce-scatters have one order together. Otherwise ranks could wait for each other where a
// communicator carries both, or where starting a collective waits for the other ranks.
//   - In a backward with new uses, the ranks count at each use which buckets are complete on how many ranks
//     (an all-reduce of CPU tensors). The buckets that are complete on all ranks are reduced; the end of
//     backward starts the rest. Until then their gradients stay in buffers.
//   - In a later backward with the same uses, the ranks count only at the uses after which a bucket was
//     reduced in the first one.
// No bucket is reduced before it is complete, because what comes later would be rounded apart: [Note: late
// gradients]. Only operators inside a backward for all leaves count.
//
// [Note: late gradients] A hook may still fire for a bucket whose reduction has started: when recomputation
// inside backward gives a parameter more gradients than in every earlier backward, or when at stages 0 and 1
// the boundary micro-step has a second backward. Such a gradient is added to the bucket's late buffer. At the
// boundary the ranks exchange which buckets have late gradients on any rank, and reduce_late() adds these
// gradients to the sums. The exchange uses CPU tensors, so that no host waits for its GPU.
//
// [Note: dtypes of gradients] Gradients are sent in the communication dtype and summed over micro-steps in
// the accumulation dtype. At stages 2 and 3 hooks write to pooled communication buffers, and the reduced
// gradients are added to this rank's slice. At stages 0 and 1 hooks write to a buffer of the whole bucket,
// and this buffer is reduced. If micro-steps are accumulated in another dtype than the communication dtype,
// hooks write to a separate buffer of sums instead, which is copied into a pooled communication buffer.
//
// [Note: scaling] The gradient that seeds engine.backward() contains the loss scale and the division by the
// number of accumulation steps. Gradients of a plain loss.backward() are divided as they are copied. Any
// other factor that must precede the sum over ranks is applied in the copy to the communication buffer. The
// optimizer pass does one division for the rest (world size, loss scale, clipping).
//
// [Note: not finite] Gradients are checked as they are copied. The tally keeps the first gradient of a window
// (the micro-steps of one gradient accumulation) that is infinite or NaN, because the sum over ranks does not
// show which gradient that was.
//
// [Note: streams of gradients] A hook writes on its current stream, once the buffer is free. A reduction
// waits for all streams that wrote to the buffer. All further work runs on the reduce stream, which records
// when the buffer is free again. Readers of the sums wait for the reduce stream. If the host updates
// parameters, the copy stream copies the sums to the host during backward, as soon as they are complete.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "comm/communicator.h"
#include "device/stream_users.h"
#include "zero/buckets.h"
#include "zero/buffer_pool.h"
#include "zero/quantized_reductions.h"
#include "zero/reduction_plan.h"
#include "zero/reduction_schedule.h"
#include "zero/stage.h"
#include "zero/sums_on_host.h"
#include "zero/use_observer.h"

namespace zerorun {

struct ReducerOptions {
  StagePolicy policy;
  bool overlap = false;  // collectives run during backward; if false, backward waits for each collective
  Dtype communication = Dtype::fp32;
  Dtype accumulation = Dtype::fp32;
  bool accumulates = false;  // gradient accumulation: some backwards of a window are not at the boundary
  float factor = 1;          // gradients are multiplied by it before they are summed over ranks
  bool to_host = false;      // this rank's slices of a window's sums are copied to the host
  bool quantizes = false;    // gradients are sent in 8 bits
  /// If `quantizes`: the group of ranks that is summed exactly before that; null: none. Must outlive the
  /// reducer.
  Communicator* summing_group = nullptr;
  /// All ranks of the job, which tell each other their notices; null: the reducer's communicator has them
  /// all. Must outlive the reducer.
  Communicator* world = nullptr;
};

/// The state of an unfinished window, apart from the gradients in the store.
struct WindowSoFar {
  std::vector<char> has_gradient;  // by trained parameter: whether it has a gradient
  int64_t arrivals = 0;            // number of gradients that this rank's hooks have received
  std::vector<uint8_t> tally;      // bytes of a Tally, which records the first gradient that was not finite
};

/// What a rank tells the others at the end of a window.
struct WindowNotice {
  bool stop = false;
  bool dropped = false;  // whether this rank has dropped gradients of the window
  // The place of the last drop, or of the window's begin: after these backwards and before those, as numbers
  // below 2^20.
  int64_t dropped_after = 0;
  int64_t dropped_before = 0;
};
struct WindowNotices {
  int64_t stops;    // how many ranks have passed `stop` as true
  bool same_drops;  // no rank has passed `dropped`, or one of the two numbers is the same on all ranks
};

class GradientReducer final : public UseObserver {
 public:
  /// `buckets`, `store` and `communicator` must outlive this object; `store` keeps the sums over ranks.
  GradientReducer(const Buckets& buckets, SliceStore& store, Communicator& communicator,
                  const ReducerOptions& options);
  ~GradientReducer() override;
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// From now on hooks leave gradients where they are: another engine has taken parameters.
  void stop() { *self_ = nullptr; }

  /// Call this before backward. `boundary`: this backward belongs to the last micro-step before an optimizer
  /// step. If no backward of a window is at the boundary, finish_window() starts the reductions. The
  /// gradients of this backward are multiplied by `scale`. If an allocation fails, this throws the
  /// allocation's error, and no backward has started.
  void start_backward(bool boundary, float scale = 1);
  void finish_backward();
  /// Call this after a backward that threw: hooks ignore gradients from then on. discard_window() or
  /// finish_abandoned() must follow.
  void abandon_backward() {
    if (std::exchange(in_backward_, false)) is_abandoned_ = true;
  }
  /// Runs the reductions that a backward that threw did not start, because the other ranks wait for them. Its
  /// missing gradients count as zeros. Where sums over ranks are made only at the boundary, a backward
  /// without gradients leaves them to the next backward, finish_window() or discard_window().
  void finish_abandoned();
  /// A parameter of which a gradient was lost in this window, because it had left its bucket; -1: none.
  int missed_parameter() const { return missed_parameter_; }
  /// Whether a gradient of the last backward has been added to those of the window.
  bool has_gradients_of_backward() const { return has_gradients_of_backward_; }
  /// Sets a function that is called on autograd's thread before each gradient of a backward that the engine
  /// has not started. The function may call start_backward(): then the reducer takes this gradient and all
  /// later ones of the backward. Until it does, gradients stay in grad().
  void set_observer(std::function<void()> observer) { observer_ = std::move(observer); }

  void before_gathers() override;
  void gathered(std::span<const int> buckets) override;

  /// Call this at the boundary on all ranks. Completes the sums of every bucket, including late gradients;
  /// later work on the current stream may read them. The all-reduce that finds late gradients also tells the
  /// ranks of each other's notices, unless other ranks of the job hear these too.
  WindowNotices finish_window(const WindowNotice& own = {});
  /// The sums over ranks of the bucket's gradients since the last step: this rank's slice, or the whole
  /// bucket if every rank updates all parameters. Always the same tensor; the optimizer may overwrite it.
  const at::Tensor& gradient(int bucket) const;
  /// Call this before writing to gradient(bucket) on the current stream. Marks the copy on the host as
  /// outdated, so that the next finish_window() copies again.
  void start_change(int bucket) { on_host_.start_change(bucket); }
  /// Returns this rank's slice of the sums in host memory if `to_host` is set. The copy stream may still be
  /// writing it when finish_window() returns.
  const at::Tensor& on_host(int bucket) const { return on_host_.memory(bucket); }
  /// Call this after the optimizer step, on its stream: the next window's sums start from zero.
  void start_window();
  /// Drops all gradients since the last optimizer step. If a backward threw, first runs the reductions that
  /// it did not start, because the other ranks wait for them.
  void discard_window();

  /// Returns the state of the window between two micro-steps. On return no collective is in flight, and the
  /// store has the window's gradients (at stages 0 and 1 this rank's own, not summed over ranks).
  WindowSoFar window_so_far();
  /// Throws UserError if window_so_far() may not be called, because some of the gradients are not in the
  /// store: late gradients, or gradients of a window with more backwards than the config says.
  void check_window_is_stored() const;
  /// Resumes a window; the store must have its gradients, and zeros for parameters that had none.
  void resume_window(const WindowSoFar& window);
  /// Whether the store's gradients are summed over ranks with each micro-step.
  bool reduces_every_backward() const { return options_.policy.reduce_every_backward; }
  /// The store's gradients are multiplied by this factor before they are summed over ranks.
  float factor() const { return options_.factor; }

  /// A Tally on the device. Gradients are numbered in the order of their arrival, so ranks that run the same
  /// model can compare the numbers in it. not_finite() returns the parameter whose gradient has the number.
  const at::Tensor& tally() const { return tally_; }
  struct NotFinite {
    int parameter;
    bool too_large;  // the gradient was finite, but overflows in the dtype of the buffer
  };
  NotFinite not_finite(int64_t number) const;

  Dtype gradient_dtype() const;  // of gradient()
  /// Bytes of the buffers that gradients pass through.
  int64_t buffer_bytes() const;

 private:
  // Where the calling thread runs: in a backward that computes the gradients of all leaves, in autograd for
  // another purpose, or outside of autograd.
  enum class Context { backward, other_task, outside };

  struct Hook;

  static constexpr int kNotices = 6;  // numbers that finish_window() sums over ranks besides late gradients

  struct BucketState {
    CommunicationBuffer buffer;  // gradients to reduce; if pooled, without memory between uses
    StreamUsers writers;         // streams that have written gradients of the bucket since its last reduction
    Event complete;              // recorded when the buffer is ready to be reduced
    at::Tensor sums;             // this rank's sums over micro-steps, unless they are in `buffer`
    bool has_sums = false;       // gradient(bucket) holds sums of the current window
    bool reduction_started = false;  // further gradients are late
    CommunicationBuffer late;        // has memory only while it holds late gradients
  };
  struct PendingReduction {
    int bucket;
    std::unique_ptr<Work> work;
    bool is_gather;
    CommunicationBuffer buffer;  // the buffer that `work` reduces or gathers
    at::Tensor arrived;          // sums to put into gradient(); undefined if `work` writes them there
    bool is_first;               // if true, `arrived` replaces gradient(), else it is added to gradient()
  };

  int slack() const;
  /// Whether the sums over micro-steps of a whole bucket have a buffer of their own, apart from communication
  /// buffers. If so, the reduced gradients overwrite these sums, and gradient() is in this buffer.
  bool reduced_in_sums() const;
  /// Whether communication buffers are taken from the pool.
  bool pooled() const { return options_.policy.reduce_every_backward || reduced_in_sums(); }
  /// allocate() returns memory from which the communicator sends fastest; all ranks must call it together.
  /// allocate_own() returns ordinary memory of this rank.
  at::Tensor allocate(int64_t numel, Dtype dtype);
  at::Tensor allocate_own(int64_t numel, Dtype dtype);
  void set_hook(int parameter);
  void make_memory(int bucket);
  void make_sums();
  void on_gradient(int parameter, const at::Tensor& tensor);
  void place(int parameter, const at::Tensor& gradient);
  FiniteCheck finite_check(int parameter) const;
  void take_buffer(int bucket);
  void start_writing(BucketState& state);
  void complete_buffer(int bucket);
  Context context() const;
  void observe_backward();
  void start_ready_reductions();
  void start_complete_everywhere();
  void start_reduction(int bucket);
  std::unique_ptr<Work> reduce_scatter(const at::Tensor& own, const at::Tensor& buffer, std::string label);
  void start_remaining_reductions();
  void leave_abandoned(bool reduces);
  void finish_plan();
  void retire_oldest();
  void retire_one_reduction();
  void finish_reduction();
  void reduce_late(int bucket);
  void give_back_late(BucketState& state);

  const Buckets* buckets_;
  SliceStore* store_;
  Communicator* communicator_;
  Device* device_;
  Streams* streams_;
  ReducerOptions options_;
  QuantizedReductions quantized_;
  BufferPool pool_;
  BufferPool late_pool_;  // for late gradients; empty after a window without any
  std::vector<BucketState> states_;
  SumsOnHost on_host_;         // without buckets unless `to_host`
  std::vector<char> written_;  // by parameter: has a gradient since the last reduction
  std::deque<PendingReduction> pending_;
  int reductions_in_flight_ = 0;
  Event reduced_;
  Event consumed_;  // recorded when the last window's update has read the sums
  at::Tensor tally_;
  at::Tensor late_counts_;  // on the CPU: for each bucket the number of ranks with late gradients, then the
                            // sums over ranks of numbers of the notices (finish_window())

  /// Shared with the hooks. Points to null once the reducer is destroyed, because a hook may outlive it.
  std::shared_ptr<GradientReducer*> self_;

  ReductionPlan plan_;
  bool follows_uses_ = false;  // reductions start at uses: [Note: order of gathers and reductions]
  ReductionSchedule schedule_;
  at::Tensor complete_counts_;  // on the CPU: for each bucket the number of ranks on which it is complete

  std::mutex hooks_;  // locked while a hook or a use is handled
  std::function<void()> observer_;
  bool in_backward_ = false;
  bool is_observed_ = false;  // a call of `observer_` has started this backward
  bool is_abandoned_ = false;
  bool has_gradients_of_backward_ = false;
  int missed_parameter_ = -1;
  float scale_ = 1;  // factor for the gradients of this backward
  bool reducing_ = false;
  bool at_boundary_ = false;
  int64_t window_arrivals_ = 0;
};

}  // namespace zerorun
