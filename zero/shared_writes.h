// Gives the other ranks what the program writes to buckets in shared memory, where a use or the end of a
// scope does that, and ends scopes. Writes to buckets that come and go reach the slices when these are
// released (GatheredBuckets::write_back()), writes to whole shared buckets with the next update
// (GatheredBuckets::start_update()). Owned by Residency, used under its lock.
//
// [Note: writes to shared buckets] If ranks share a bucket's memory, the program's writes go to this rank's
// private copy of the bucket. This holds for operators, for scopes, and for raw access after synchronize().
// The other ranks receive this rank's slice of the copy
//   - for a whole bucket: with the next update;
//   - for a partitioned bucket in shared memory: at the next use, which is an operator on a partitioned
//     bucket that no scope holds. A further write to the same bucket does not count as a use;
//   - for a bucket gathered from files ([Note: shared gathers]): when the bucket is released.
// At the end of a scope with a modifier rank all of these are shared at once, except for a planned gather
// from files. All ranks have the same uses and releases; operators inside a scope do not count as uses. An
// update writes to memory that all ranks read. So it begins only after a collective (the norm's all-reduce)
// that each rank enters after its last use of the parameters. The first use after the update waits until all
// ranks have updated their slices of the bucket.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "zero/buckets.h"
#include "zero/gathered_buckets.h"
#include "zero/slice_store.h"

namespace zerorun {

/// How a scope that held buckets ended.
enum class ScopeEnd {
  read,       // writes that all ranks made by operators stay, even if some ranks threw an exception
  written,    // the modifier rank wrote, and all ranks have its values
  abandoned,  // an exception was thrown before all ranks had the values
};

class SharedWrites {
 public:
  /// All arguments must outlive this object.
  SharedWrites(GatheredBuckets& gathered, const Buckets& buckets, const SliceStore& store,
               Communicator& communicator);

  /// Whether share_all() has copies to share or a query to wait for.
  bool has_writes() const { return gathered_->memory().copies() > 0 || !queries_.empty(); }
  /// Whether the program has written to this bucket, the other ranks have not received those values yet, and
  /// no query is open.
  bool has_unshared_write(int bucket) const { return queries_.empty() && written_before(bucket); }
  /// Gives the other ranks what the program has written to partitioned buckets in shared memory. A
  /// collective: all ranks have the same writes and uses of partitioned parameters, so all of them call this.
  void share_all();

  /// Gives a bucket that a scope holds a private copy, if writes need one.
  void copy_for_scope(int bucket);
  /// Whether the bucket's copy was made for a scope.
  bool is_copied_for_scope(int bucket) const { return copied_for_scope_[bucket]; }
  /// Ends a scope on buckets that no other scope holds. All ranks pass the same buckets and the same `end`,
  /// except that some may pass `abandoned`.
  void end_scope(std::span<const int> buckets, ScopeEnd end);
  /// Waits for what ranks have told each other about scopes that ended, and acts on it.
  void finish_queries();

 private:
  // An all-reduce that counts the ranks that wrote to shared, partitioned buckets in a scope. All ranks start
  // it when the scope ends, even if an exception ends the scope, and wait for it later, at a point that all
  // ranks reach.
  struct WriterQuery {
    std::vector<int> buckets;
    at::Tensor writers;  // by bucket: the number of ranks that have written
    std::unique_ptr<Work> work;
  };

  bool written_before(int bucket) const;
  void share(int bucket);
  void end_on(int bucket, ScopeEnd end);
  void end_read(int bucket);
  void start_query(std::vector<int> buckets);

  GatheredBuckets* gathered_;
  const Buckets* buckets_;
  const SliceStore* store_;
  Communicator* communicator_;
  std::vector<bool> copied_for_scope_;  // by bucket
  std::vector<WriterQuery> queries_;
};

}  // namespace zerorun
