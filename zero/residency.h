// Decides when parameters have memory: sees every operator that uses a marked bucket, gathers the bucket,
// waits for it, and takes its memory away again. Owned by the engine; operators come from any thread.
// [Note: residency]
//
//   sharded ──> gathering ──> resident ──> dirty      a bucket that comes and goes
//      └<──────────┴<────────────┴<──────────┘
//   resident <──> gathering                           a whole bucket (stages 1 and 2)
//   resident <──> gathering, resident <──> dirty      a bucket at home in shared memory (stages 1 to 3)
//
// Only move() changes a bucket's state. The parameters of a partitioned or shared bucket are accessible only
// while an operator or a scope pins it; raw access without a scope throws. The operators and the trace alone
// decide what is gathered when, so all ranks gather in the same order; if they do not, the error says where
// each rank is.
//
// [Note: writes to shared buckets] An operator that writes to a parameter of a bucket whose memory the ranks
// share writes to this rank's own copy of the bucket, and so does a scope, and raw access after
// synchronize(). This rank's slice of the copy reaches the other ranks
//   - of a whole bucket with the next update;
//   - of a partitioned bucket at home in shared memory at the next use: an operator on a partitioned bucket
//     that no scope holds, unless it writes again to the bucket just written;
//   - of a bucket gathered from files ([Note: shared gathers]) when the bucket is released.
// All ranks come to uses and releases alike; what one rank alone does inside a scope does not count as a use.
// Updates write to memory that all ranks read: they begin behind a collective that each rank comes to when it
// has used the parameters (the norm), and the first use afterwards waits for all owners of its bucket.
#pragma once

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

namespace zerorun {

/// How a scope that held buckets ended.
enum class ScopeEnd {
  read,       // values that all ranks wrote by operators stay, even if some ranks threw an exception
  written,    // the modifier rank wrote, and all ranks have the values
  abandoned,  // an exception came before all ranks had the values
};

class Residency final : public OperatorListener {
 public:
  /// `buckets`, which are marked, and `communicator` must outlive this. `in_training` selects the trace:
  /// training's or inference's.
  Residency(Buckets& buckets, Communicator& communicator, GatherLimits limits,
            std::function<bool()> in_training);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  void enter(const c10::OperatorHandle& op, std::span<const Touched> touched) override;
  void leave(std::span<const Touched> touched) noexcept override;

  /// Calls `before_write` before the program's writes reach this rank's slice of a bucket, with the lock held
  /// and on any thread. Not called for updates: the engine starts those itself.
  void set_before_write(std::function<void(int bucket)> before_write) {
    before_write_ = std::move(before_write);
  }
  /// Whether the program may have written values that other ranks have not received.
  bool has_pending_writes() const {
    std::lock_guard lock(mutex_);
    return has_writes();
  }

  /// Ends the iteration: releases partitioned buckets that no scope holds (the program's writes reach the
  /// shards) and waits for the gathers of whole ones.
  void finish_iteration();

  /// Call this before the current stream updates the bucket's shard.
  void start_update(int bucket);
  /// Call this after the update. `gathers`: starts the all-gather of a whole or shared bucket; its first use
  /// waits for it.
  void finish_update(int bucket, bool gathers);
  /// Makes values that are being gathered available to the current stream, and whole shared buckets
  /// accessible without operators.
  void synchronize();

  /// Keeps buckets in memory until unhold(). A collective: all ranks hold the same buckets.
  void hold(std::span<const int> buckets);
  /// All ranks pass the same `end`, except that some may pass `abandoned`.
  void unhold(std::span<const int> buckets, ScopeEnd end);
  /// All values of a bucket that is held, 1-D, for the current stream to write to.
  at::Tensor start_write(int bucket);

  ResidencyReport report() const;

 private:
  enum class State { sharded, gathering, resident, dirty };

  struct BucketState {
    BucketKind kind;
    State state = State::sharded;
    int pins = 0;                // operators and scopes that use the memory now
    bool open = false;           // raw access to the copy of a shared bucket is allowed outside of scopes too
    bool held_clean = false;     // the copy was made for a scope
    std::unique_ptr<Work> work;  // while gathering
    int64_t last_use = 0;        // by clock_
    Event shard_written;         // the shard has its values
    Event gathered;
  };

  struct Start {
    int bucket;
    std::string reason;
  };

  // Which ranks wrote to shared, partitioned buckets in a scope that has ended. All ranks start the
  // all-reduce, however the scope ended, and wait for it later, at a point that all of them reach.
  struct WriterQuery {
    std::vector<int> buckets;
    at::Tensor writers;  // by bucket: the number of ranks that have written
    std::unique_ptr<Work> work;
  };

  struct OperatorUse {
    const c10::OperatorHandle& op;
    std::span<const Touched> touched;
  };

  /// Whether raw access to the parameters throws unless the bucket is pinned, even if all values are in
  /// memory.
  bool guarded(int bucket) const {
    const BucketState& state = states_[bucket];
    return state.kind.around_uses || (state.kind.copied_for_writes && !state.open);
  }
  static const char* name_of(State state);
  bool may_move(int bucket, State to) const;
  void move(int bucket, State to, std::string reason = {});
  void start_gathers(std::span<Start> starts);
  void copy_shard(int bucket, ValueUse use, const at::Tensor& to, const at::Tensor& from);
  std::unique_ptr<Work> gather(int bucket, std::string reason);
  void finish_gather(int bucket);
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
  /// Whether share_writes() may have something to do.
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
  /// Whether uses are recorded and gathers planned: not if gathers cost nothing, nor in inference if all
  /// buckets may stay in memory.
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

  mutable std::recursive_mutex mutex_;  // guards all below
  std::vector<BucketState> states_;     // one per bucket
  std::vector<int> passing_;            // buckets that come and go
  std::vector<int> staying_;            // the other buckets
  GatherMemory memory_;
  GatherTrace training_trace_;
  GatherTrace inference_trace_;
  bool training_ = true;      // the current iteration follows the training trace
  std::vector<int> current_;  // the buckets of the current use
  int copies_made_ = 0;       // copies of shared buckets that exist now
  std::vector<WriterQuery> writer_queries_;
  std::vector<ChunkOfSlice> reads_;  // shards, in the order of the plan
  int64_t clock_ = 0;
  int64_t live_numel_ = 0;  // of buckets that come and go and are not sharded
  Event shard_copied_;      // to or from a buffer of a slice in files
  CopyWatch escaped_copies_;
  ResidencyReport report_;
};

}  // namespace zerorun
