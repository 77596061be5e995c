// [Note: residency] Decides when parameters have memory. Residency is notified of every operator that uses a
// marked bucket, gathers the bucket before the operator runs, and releases the memory later. Owned by the
// engine; operators may run on any thread. The parts: GatheredBuckets has the states of buckets and moves
// them between states; GatherTrace records uses and plans gathers; SharedWrites brings the program's writes
// to the slices. This class ties them to operators, scopes and iterations, under one lock.
//
// The order of gathers depends only on the operators and the trace, so it is the same on all ranks. If two
// ranks disagree, the error shows the bucket and the operator of each rank.
#pragma once

#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "zero/buckets.h"
#include "zero/cast_copies.h"
#include "zero/copy_watch.h"
#include "zero/gather_trace.h"
#include "zero/gathered_buckets.h"
#include "zero/interception.h"
#include "zero/residency_report.h"
#include "zero/shared_writes.h"
#include "zero/slice_store.h"
#include "zero/use_observer.h"

namespace zerorun {

class Residency final : public OperatorListener {
 public:
  /// `buckets` (marked), `store` and the communicators must outlive this object. `in_training` returns
  /// whether the model trains; training and inference have separate traces.
  Residency(Buckets& buckets, SliceStore& store, Communicator& communicator, GatherLimits limits,
            std::function<bool()> in_training, const GatherWays& ways = {});
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  void enter(const c10::OperatorHandle& op, std::span<const Touched> touched) override;
  void leave(std::span<const Touched> touched) noexcept override;
  void cast(const at::Tensor& source, const at::Tensor& copy) override;

  /// Sets a function that is called before the program's writes reach this rank's slice of a bucket, on any
  /// thread and with the lock held. It is not called for updates, which the engine starts itself.
  void set_before_write(std::function<void(int bucket)> before_write) {
    gathered_.set_before_write(std::move(before_write));
  }
  /// Sets the object that is notified of uses of buckets that come and go. It must outlive the last operator.
  void set_use_observer(UseObserver* observer) { use_observer_ = observer; }
  /// Whether the program may have written values that the other ranks have not received.
  bool has_pending_writes() const;
  /// Whether this rank may run operators that read parameters while the other ranks do not run them. It may
  /// if no bucket is gathered around its uses and the next use does not share writes.
  bool allows_lone_reads() const;

  /// Whether it is certain that finish_iteration() follows, however many uses of parameters come before it.
  void set_ends_surely(bool ends_surely);
  /// Ends the iteration. Releases the partitioned buckets that no scope holds; each release copies the
  /// program's writes to the shard. Then waits for gathers of whole buckets that are still in progress.
  void finish_iteration();

  /// Call this before the current stream updates the bucket's shard.
  void start_update(int bucket);
  /// Call this after the update. If `gathers`, starts the all-gather of a whole or shared bucket; the
  /// bucket's first use waits for the all-gather.
  void finish_update(int bucket, bool gathers);
  /// Waits for all gathers in progress (on a device with streams the current stream waits), and allows raw
  /// access to whole shared buckets.
  void synchronize();

  /// Keeps buckets in memory until unhold(). A collective: all ranks hold the same buckets.
  void hold(std::span<const int> buckets);
  /// Whether unhold(), if it is called now as `abandoned`, undoes what this rank has written to the held
  /// bucket since the last hold().
  bool undoes_writes(int bucket) const;
  /// All ranks pass the same `end`, except that some may pass `abandoned`.
  void unhold(std::span<const int> buckets, ScopeEnd end);
  /// Returns all values of a held bucket, 1-D, which the current stream may then write.
  at::Tensor start_write(int bucket);

  ResidencyReport report() const;

 private:
  using State = GatheredBuckets::State;
  using Start = GatheredBuckets::Start;

  struct OperatorUse {
    const c10::OperatorHandle& op;
    std::span<const Touched> touched;
  };

  void set_training(bool training);
  void note_use(const OperatorUse& use, std::span<const int> buckets);
  bool is_current(std::span<const int> buckets) const;
  void follow(std::span<const GatherPlan::Gather> gathers);
  void gather_on_demand(std::span<const int> buckets, const std::string& reason, bool exactly = false);
  void gather_exactly(int bucket, const std::string& reason);
  void make_room(std::span<const int> buckets);
  void release_unpinned();
  void free_arena();
  /// "for aten::addmm on h.0.weight"
  std::string describe(const OperatorUse& use) const;
  /// The parameter that the tensor, on the bucket's storage, is a part of.
  int parameter_of(int bucket, const at::Tensor& tensor) const;

  GatherTrace& trace() { return training_ ? training_trace_ : inference_trace_; }
  /// Whether uses are recorded and gathers are planned. Neither is done if gathers cost nothing, or in
  /// inference if all buckets may stay in memory.
  bool traced() const;
  void plan_reads();

  Buckets* buckets_;
  SliceStore* store_;
  Communicator* communicator_;
  Streams* streams_;
  GatherLimits limits_;
  std::vector<int64_t> bucket_numel_;
  int64_t comes_and_goes_numel_ = 0;
  bool fetches_shards_ = false;  // some shards are in files or in host memory

  std::function<bool()> in_training_;
  UseObserver* use_observer_ = nullptr;

  mutable std::recursive_mutex mutex_;  // guards all members below
  GatheredBuckets gathered_;
  SharedWrites writes_;
  GatherTrace training_trace_;
  GatherTrace inference_trace_;
  bool training_ = true;             // the current iteration uses training_trace_, else inference_trace_
  std::vector<int> current_;         // the buckets of the current use
  int64_t releases_before_use_ = 0;  // releases until `current_` was set
  std::vector<ChunkOfSlice> reads_;  // shards in the order in which the plan reads them
  int64_t clock_ = 0;
  std::vector<int64_t> last_use_;  // by bucket: clock_ at the last use
  std::vector<int> scopes_;        // by bucket: how many scopes hold it
  CopyWatch escaped_copies_;
  CastCopies casts_;
};

}  // namespace zerorun
