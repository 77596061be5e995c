// [Note: residency] Decides when parameters have memory. Residency is notified of every operator that uses a
// marked bucket, gathers the bucket before the operator runs, and releases the memory later. Owned by the
// engine; operators may run on any thread. The states of a bucket:
//
//   sharded ──> gathering ──> resident ──> dirty      a bucket that comes and goes (BucketKind)
//      └<──────────┴<────────────┴<──────────┘
//   resident <──> gathering                           a whole bucket (stages 1 and 2)
//   resident <──> gathering, resident <──> dirty      a bucket in shared memory (stages 1 to 3)
//
// Only move() changes a bucket's state. The parameters of a partitioned or shared bucket are accessible only
// while an operator or a scope pins the bucket; raw access without a scope throws. The order of gathers
// depends only on the operators and the trace, so it is the same on all ranks. If two ranks disagree, the
// error shows the bucket and the operator of each rank.
//
// [Note: writes to shared buckets] If ranks share a bucket's memory, the program's writes go to this rank's
// private copy of the bucket. This holds for operators, for scopes, and for raw access after synchronize().
// The other ranks receive this rank's slice of the copy
//   - for a whole bucket: with the next update;
//   - for a partitioned bucket in shared memory: at the next use, which is an operator on a partitioned
//     bucket that no scope holds. A further write to the same bucket does not count as a use;
//   - for a bucket gathered from files ([Note: shared gathers]): when the bucket is released.
// All ranks have the same uses and releases; operators inside a scope do not count as uses. An update writes
// to memory that all ranks read. So it begins only after a collective (the norm's all-reduce) that each rank
// enters after its last use of the parameters. The first use after the update waits until all ranks have
// updated their slices of the bucket.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "zero/buckets.h"
#include "zero/copy_watch.h"
#include "zero/gather_memory.h"
#include "zero/gather_trace.h"
#include "zero/interception.h"
#include "zero/residency_report.h"
#include "zero/use_observer.h"

namespace zerorun {

/// How a scope that held buckets ended.
enum class ScopeEnd {
  read,       // writes that all ranks made by operators stay, even if some ranks threw an exception
  written,    // the modifier rank wrote, and all ranks have its values
  abandoned,  // an exception was thrown before all ranks had the values
};

class Residency final : public OperatorListener {
 public:
  /// `buckets` (marked) and `communicator` must outlive this object. `in_training` returns whether the model
  /// trains; training and inference have separate traces.
  Residency(Buckets& buckets, Communicator& communicator, GatherLimits limits,
            std::function<bool()> in_training);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  void enter(const c10::OperatorHandle& op, std::span<const Touched> touched) override;
  void leave(std::span<const Touched> touched) noexcept override;

  /// Sets a function that is called before the program's writes reach this rank's slice of a bucket, on any
  /// thread and with the lock held. It is not called for updates, which the engine starts itself.
  void set_before_write(std::function<void(int bucket)> before_write) {
    before_write_ = std::move(before_write);
  }
  /// Sets the object that is notified of uses of buckets that come and go. It must outlive the last operator.
  void set_use_observer(UseObserver* observer) { use_observer_ = observer; }
  /// Whether the program may have written values that the other ranks have not received.
  bool has_pending_writes() const {
    std::lock_guard lock(mutex_);
    return has_writes();
  }

  /// Whether this rank may run operators that read parameters while the other ranks do not run them. It may
  /// if no bucket is gathered around its uses and the next use does not share writes.
  bool allows_lone_reads() const {
    std::lock_guard lock(mutex_);
    const bool shares =
        std::ranges::any_of(states_, [](const BucketState& s) { return s.kind.around_uses(); });
    return passing_.empty() && !(shares && has_writes());
  }

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
  bool undoes_writes(int bucket) const {
    std::lock_guard lock(mutex_);
    const BucketState& state = states_[bucket];
    if (state.pins != 1) return false;  // another scope has held it before
    if (!state.kind.comes_and_goes()) return state.held_clean;
    return !buckets_->shard(bucket).is_alias_of(memory_.of(bucket));
  }
  /// All ranks pass the same `end`, except that some may pass `abandoned`.
  void unhold(std::span<const int> buckets, ScopeEnd end);
  /// Returns all values of a held bucket, 1-D, which the current stream may then write.
  at::Tensor start_write(int bucket);

  ResidencyReport report() const;

 private:
  enum class State { sharded, gathering, resident, dirty };

  struct BucketState {
    BucketKind kind;
    State state = State::sharded;
    int pins = 0;                // operators and scopes that use the memory now
    bool open = false;           // raw access to a shared bucket's copy is allowed even outside of scopes
    bool held_clean = false;     // the copy was made for a scope
    std::unique_ptr<Work> work;  // the all-gather, while `state` is gathering
    int64_t last_use = 0;        // clock_ at the last use
    Event shard_written;         // recorded after the last write to the shard
    Event gathered;
  };

  struct Start {
    int bucket;
    std::string reason;
  };

  // An all-reduce that counts the ranks that wrote to shared, partitioned buckets in a scope. All ranks start
  // it when the scope ends, even if an exception ends the scope, and wait for it later, at a point that all
  // ranks reach.
  struct WriterQuery {
    std::vector<int> buckets;
    at::Tensor writers;  // by bucket: the number of ranks that have written
    std::unique_ptr<Work> work;
  };

  struct OperatorUse {
    const c10::OperatorHandle& op;
    std::span<const Touched> touched;
  };

  /// Whether raw access to the parameters throws while nothing pins the bucket, even if all values are in
  /// memory.
  bool guarded(int bucket) const {
    const BucketState& state = states_[bucket];
    return state.kind.around_uses() || (state.kind.copied_for_writes() && !state.open);
  }
  static const char* name_of(State state);
  bool may_move(int bucket, State to) const;
  void move(int bucket, State to, std::string reason = {});
  void start_gathers(std::span<Start> starts);
  void copy_shard(int bucket, ValueUse use, const at::Tensor& to, const at::Tensor& from);
  std::unique_ptr<Work> gather(int bucket, std::string reason);
  void finish_gather(int bucket);
  /// Runs a part of a gather, and notes in the report if it throws CommError.
  template <typename Collective>
  auto noting_lost_ranks(const Collective& collective) -> decltype(collective());
  void write_back(int bucket);
  void release(int bucket);
  void join(int bucket);
  void pin(int bucket);
  void unpin(int bucket);
  void make_copy(int bucket);
  void open_copy(int bucket);
  void drop_copy(int bucket);
  void share(int bucket);
  void end_scope(int bucket, ScopeEnd end);
  void end_read(int bucket);
  void start_writer_query(std::vector<int> buckets);
  void finish_writer_queries();
  void share_writes();
  bool written_before(int bucket) const;
  /// Whether share_writes() has copies to share or a query to wait for.
  bool has_writes() const { return copies_made_ > 0 || !writer_queries_.empty(); }
  void set_training(bool training);
  void note_use(const OperatorUse& use, std::span<const int> buckets);
  void follow(std::span<const GatherPlan::Gather> gathers);
  void gather_on_demand(std::span<const int> buckets, const std::string& reason);
  void make_room(std::span<const int> buckets);
  void release_unpinned();
  void free_arena();
  /// "for aten::addmm on h.0.weight"
  std::string describe(const OperatorUse& use) const;

  GatherTrace& trace() { return training_ ? training_trace_ : inference_trace_; }
  /// Whether uses are recorded and gathers are planned. Neither is done if gathers cost nothing, or in
  /// inference if all buckets may stay in memory.
  bool traced() const;
  void plan_reads();

  Buckets* buckets_;
  Communicator* communicator_;
  Device* device_;
  Streams* streams_;
  GatherLimits limits_;
  std::vector<int64_t> bucket_numel_;
  int64_t comes_and_goes_numel_ = 0;
  bool fetches_shards_ = false;  // some shards are in files or in host memory

  std::function<bool()> in_training_;
  std::function<void(int)> before_write_ = [](int) {};
  UseObserver* use_observer_ = nullptr;

  mutable std::recursive_mutex mutex_;  // guards all members below
  std::vector<BucketState> states_;     // one per bucket
  std::vector<int> passing_;            // buckets that have memory only while they are gathered
  std::vector<int> staying_;            // buckets that always have memory
  GatherMemory memory_;
  GatherTrace training_trace_;
  GatherTrace inference_trace_;
  bool training_ = true;      // the current iteration uses training_trace_, else inference_trace_
  std::vector<int> current_;  // the buckets of the current use
  int copies_made_ = 0;       // number of private copies of shared buckets that exist now
  std::vector<WriterQuery> writer_queries_;
  std::vector<ChunkOfSlice> reads_;  // shards in the order in which the plan reads them
  int64_t clock_ = 0;
  int64_t live_numel_ = 0;  // elements of partitioned buckets that are gathered or being gathered
  Event shard_copied_;      // recorded after a copy to or from the buffer of a slice in files
  CopyWatch escaped_copies_;
  ResidencyReport report_;
};

}  // namespace zerorun
