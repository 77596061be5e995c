// Gives the buckets of a model memory for all their values and takes it away: gathers, releases, and this
// rank's private copies of shared buckets. Owned by Residency, which decides when; used under its lock. The
// states of a bucket:
//
//   sharded ──> gathering ──> resident ──> dirty      a bucket that comes and goes (BucketKind)
//      └<──────────┴<────────────┴<──────────┘
//   resident <──> gathering                           a whole bucket (of any stage)
//   resident <──> gathering, resident <──> dirty      a bucket in shared memory (stages 1 to 3)
//
// Only move() changes a bucket's state. The parameters of a partitioned or shared bucket are accessible only
// while an operator or a scope pins the bucket; raw access without a scope throws.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "zero/buckets.h"
#include "zero/gather_memory.h"
#include "zero/near_copies.h"
#include "zero/quantized_gathers.h"
#include "zero/residency_report.h"
#include "zero/slice_store.h"

namespace zerorun {

/// How partitioned buckets are gathered.
struct GatherWays {
  Communicator* near = nullptr;  // the group in which they have second copies (NearCopies); null: none
  bool quantized = false;        // in 8 bits (QuantizedGathers)
};

class GatheredBuckets {
 public:
  enum class State {
    sharded,    // has no memory
    gathering,  // the all-gather runs
    resident,   // all values are in memory
    dirty,      // likewise, and the program has written some that the slices do not have yet
  };

  /// A gather to start. `reason` is for error messages ("for aten::addmm on h.0.weight"), and for the trace
  /// of gathers.
  struct Start {
    int bucket;
    std::string reason;
    bool exactly = false;  // not rounded to 8 bits
  };

  /// `buckets` (marked), `store` and the communicators must outlive this object.
  GatheredBuckets(Buckets& buckets, SliceStore& store, Communicator& communicator, const GatherWays& ways);

  /// Call this before the engine is destroyed. Waits for the gathers of whole buckets, whose values the model
  /// keeps.
  void leave();

  /// Sets a function that is called before the program's writes reach this rank's slice of a bucket.
  void set_before_write(std::function<void(int bucket)> before_write) {
    before_write_ = std::move(before_write);
  }
  void before_write(int bucket) const { before_write_(bucket); }

  BucketKind kind(int bucket) const { return states_[bucket].kind; }
  State state(int bucket) const { return states_[bucket].state; }
  /// The number of operators and scopes that use the bucket's memory now.
  int pins(int bucket) const { return states_[bucket].pins; }
  /// Whether the values that the last gather gave are rounded to 8 bits.
  bool is_rounded(int bucket) const { return states_[bucket].is_rounded; }
  bool may_be_released(int bucket) const { return state(bucket) != State::sharded && pins(bucket) == 0; }
  GatherMemory& memory() { return memory_; }
  const GatherMemory& memory() const { return memory_; }
  /// The buckets that come and go.
  const std::vector<int>& temporary() const { return temporary_; }
  /// The buckets that always have memory.
  const std::vector<int>& permanent() const { return permanent_; }
  /// The number of elements of buckets that come and go and are gathered or being gathered.
  int64_t live_numel() const { return live_numel_; }
  /// The number of releases so far.
  int64_t releases() const { return releases_; }
  /// This report leaves out departures from the trace.
  ResidencyReport report() const;

  /// Changes the bucket's state, and gathers or releases its memory accordingly. `reason`: of a gather.
  void move(int bucket, State to, std::string reason = {});
  /// Starts gathers on the gather stream, after the last updates of the shards and the last uses of the
  /// memory.
  void start_gathers(std::span<Start> starts);
  /// If the bucket is being gathered, waits for that.
  void finish_gather(int bucket) {
    if (state(bucket) == State::gathering) move(bucket, State::resident);
  }
  void pin(int bucket);
  void unpin(int bucket);
  /// Call this before the current stream uses the values.
  void join(int bucket);

  /// Gives a shared bucket a private copy, unless it has one.
  void make_copy(int bucket);
  /// Makes a copy to which raw access is allowed even outside of scopes.
  void open_copy(int bucket);
  bool copy_is_open(int bucket) const { return states_[bucket].copy_is_open; }
  void drop_copy(int bucket);
  /// The next gather of the bucket is among all ranks. All ranks call this at the same point.
  void drop_near_copy(int bucket) { near_.drop(bucket); }
  /// Copies this rank's slice of the gathered values, to which the program has written, to its shard.
  void write_back(int bucket);

  /// The two parts of an update of the shard, as Residency::start_update() and Residency::finish_update()
  /// say. The first waits for all readers of the shard, and takes over what a private copy has; the second
  /// starts the next gather.
  void start_update(int bucket);
  void finish_update(int bucket, bool gathers);

 private:
  struct BucketState {
    BucketKind kind;
    State state = State::sharded;
    int pins = 0;
    bool copy_is_open = false;
    std::unique_ptr<Work> work;  // the all-gather, while `state` is gathering
    bool exactly = false;        // it gives values that are not rounded
    bool is_far = false;         // it is among all ranks, and not inside NearCopies' group
    bool is_rounded = false;     // it gives values that were rounded to 8 bits
    Event shard_written;         // recorded after the last write to the shard
    Event gathered;
  };

  /// Whether raw access to the parameters throws while nothing pins the bucket, even if all values are in
  /// memory.
  bool guarded(int bucket) const {
    const BucketState& state = states_[bucket];
    return state.kind.around_uses() || (state.kind.copied_for_writes() && !state.copy_is_open);
  }
  static const char* name_of(State state);
  bool may_move(int bucket, State to) const;
  bool is_near(int bucket, bool exactly) const {
    return near_.has(bucket) && !(exactly && near_.is_rounded(bucket));
  }
  std::unique_ptr<Work> gather(int bucket, std::string reason);
  void start_all(std::span<Start> starts, bool is_far);
  /// Takes what a gather has brought, in the order of the current stream.
  void take_gathered(int bucket);
  void await_gather(int bucket);
  /// Runs a part of a gather, and notes in the report if it throws CommError.
  template <typename Collective>
  auto noting_lost_ranks(const Collective& collective) -> decltype(collective());
  void release(int bucket);
  void give_memory_to_parameters(int bucket);
  void copy_shard(int bucket, ValueUse use, const at::Tensor& to, const at::Tensor& from);

  Buckets* buckets_;
  SliceStore* store_;
  Communicator* communicator_;
  Device* device_;
  Streams* streams_;
  std::function<void(int)> before_write_ = [](int) {};
  std::vector<BucketState> states_;  // one per bucket
  std::vector<int> temporary_;
  std::vector<int> permanent_;
  GatherMemory memory_;
  NearCopies near_;
  QuantizedGathers quantized_;
  int64_t live_numel_ = 0;
  int64_t releases_ = 0;
  Event shard_copied_;  // recorded after a copy to or from the buffer of a slice in files
  ResidencyReport report_;
};

}  // namespace zerorun
