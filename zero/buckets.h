// A model's parameters in buckets: a bucket is one storage, parameters are views into it. A whole bucket
// keeps its memory; of a partitioned bucket this rank keeps its slice, and Residency gives the storage memory
// around uses. Owned by the engine; after construction only the values change.
//
// [Note: shared buckets] If ranks share memory, they hold one copy of a bucket's values, whole or
// partitioned: the slices lie side by side, each owner writes its slice, and a gather copies nothing but
// waits for the owners. Parameters are accessible only around uses; the program's writes go to this rank's
// own copy (residency.h).
//
// [Note: master weights] 16-bit parameters are rounded copies of fp32 master weights, which this rank keeps
// for the slices that it updates. Only the optimizer writes to both. When an operator of the program writes
// to a parameter, the listener calls note_written(), and follow_writes() copies the new values into the
// master weights before the next update.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "comm/communicator.h"
#include "zero/interception.h"
#include "zero/layout.h"
#include "zero/shared_gathers.h"
#include "zero/slice_store.h"

namespace zerorun {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;  // the user's leaf
  int group;          // or kFrozen
};

/// Where the values of a marked bucket are, and how its writes are treated.
struct BucketKind {
  /// The bucket has memory for all values only from a gather to a release.
  bool comes_and_goes = false;
  /// Ranks share the memory of the values, so what the program writes goes to a copy of this rank's.
  bool copied_for_writes = false;
  /// The parameters are accessible only around uses, which all ranks come to alike, and lose their values
  /// with the engine.
  bool around_uses = false;

  /// Whether the program's writes have to be moved elsewhere afterwards.
  bool moves_writes() const { return comes_and_goes || copied_for_writes; }
};

struct BucketOptions {
  /// The listener given to listen() sees operators on the parameters. Partitioned buckets must be marked.
  bool marked = false;
  bool shared = false;            // marked buckets lie in memory that ranks share, or are gathered there
  Dtype dtype = Dtype::fp32;      // of the values; under a 16-bit one trained buckets have master weights
  bool master_from_fp32 = false;  // master weights start from the unrounded parameters
  bool whole_master = false;      // this rank keeps the master weights of all slices, not only of its own
  bool master_on_host = false;    // host memory has the master weights, which fp32 values then have too
  bool shards_on_host = false;    // host memory has the slices of partitioned buckets too
};

/// Whether a bucket has master weights: trained buckets under a 16-bit dtype, and buckets that the host
/// updates without having their values.
inline bool has_master(const BucketLayout& layout, const BucketOptions& options) {
  if (layout.group == kFrozen) return false;
  return options.dtype != Dtype::fp32 ||
         (options.master_on_host && !(options.shards_on_host && layout.partitioned));
}

class Buckets {
 public:
  /// Moves `parameters` (floating-point, dense, on any device, or deferred; frozen ones last) into buckets on
  /// the communicator's device, by the layout of `store`. The store keeps values and master weights, in files
  /// if it has files for them, and outlives the buckets. The user's leaves stay the same tensors and get rank
  /// 0's values. Beyond the final memory, one whole bucket at a time is in memory.
  Buckets(std::vector<NamedParameter> parameters, SliceStore& store, Communicator& communicator,
          const BucketOptions& options);
  ~Buckets();
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;

  const BucketOptions& options() const { return options_; }
  int count() const { return store_->count(); }
  /// Buckets of trained parameters come first, then those of frozen ones.
  int trained_count() const { return trained_count_; }
  const BucketLayout& layout(int bucket) const { return store_->layout(bucket); }
  bool partitioned(int bucket) const { return layout(bucket).partitioned; }
  /// [Note: shared buckets]
  bool shared(int bucket) const { return shared_[bucket]; }
  /// Whether the ranks of the host gather it into one buffer: [Note: shared gathers].
  bool gathers_once(int bucket) const { return shared_gathers_ && shared_gathers_->buffer(bucket).defined(); }
  /// Null if there is no such bucket.
  SharedGathers* shared_gathers() const { return shared_gathers_.get(); }
  /// Whether the bucket has memory for all values only from a gather to a release.
  bool comes_and_goes(int bucket) const { return partitioned(bucket) && !shared(bucket); }
  BucketKind kind(int bucket) const {
    return {.comes_and_goes = comes_and_goes(bucket),
            .copied_for_writes = shared(bucket) || gathers_once(bucket),
            .around_uses = partitioned(bucket)};
  }
  /// "bucket 3 (transformer.h.1.mlp.c_fc.weight and 2 more)"
  const std::string& label(int bucket) const { return labels_[bucket]; }

  /// All values of a whole or shared bucket, 1-D; slice r belongs to rank r.
  const at::Tensor& flat(int bucket) const;
  /// This rank's slice of the values, 1-D. A slice in files has memory only inside with_shard().
  const at::Tensor& shard(int bucket) const { return values(bucket).own; }
  bool shard_in_files(int bucket) const { return store_->has_values_in_files(bucket); }
  /// Whether a gather copies the slice to where this rank computes, from files or from host memory.
  bool shard_is_brought(int bucket) const {
    const Home home = values(bucket).home;
    return home == Home::file || home == Home::host;
  }
  /// Calls visit() while the shard has memory. Throws TrainingError if a disk fails.
  template <typename Visit>
  void with_shard(int bucket, ValueUse use, const Visit& visit) const {
    store_->with_values(bucket, use, visit);
  }
  /// Announces the order of the next reads of shards, as far as it is known.
  void plan_reads(std::span<const ChunkOfSlice> shards) const {
    if (store_->value_files()) store_->value_files()->plan(shards);
  }
  Dtype dtype() const { return options_.dtype; }
  bool has_master(int bucket) const { return zerorun::has_master(layout(bucket), options_); }
  /// `rank`'s slice of a tensor laid out like this bucket.
  at::Tensor slice(int bucket, const at::Tensor& flat, int rank) const {
    return store_->slice_of(bucket, flat, rank);
  }
  /// The storage that the bucket's parameters are views of.
  const c10::Storage& storage(int bucket) const { return storages_[bucket]; }

  /// `listener` sees operators on marked buckets from now on.
  bool marked() const { return owners_ != nullptr; }
  void listen(OperatorListener* listener);
  /// Marks a whole bucket as incomplete for good: its parameters get no memory when the engine is destroyed.
  void give_up(int bucket) { given_up_[bucket] = true; }
  /// The parameters of a whole, shared bucket get `values`, not the shared ones, when the engine is
  /// destroyed.
  void leave_with(int bucket, at::Tensor values) { own_values_[bucket] = std::move(values); }
  int bucket_of(const StorageOwner* owner) const { return static_cast<int>(owner - owners_.get()); }

  /// Trained ones first.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  std::span<const NamedParameter> trained() const { return {parameters_.data(), trained_parameters_}; }
  int bucket_of(int parameter) const { return placement(parameter).bucket; }
  /// The parameter at `offset` (elements) of the bucket.
  int parameter_at(int bucket, int64_t offset) const;
  /// A view of the parameter's part of `flat`, a tensor laid out like its bucket, with the parameter's sizes
  /// and strides.
  at::Tensor view(int parameter, const at::Tensor& flat) const;
  /// The parameter's elements in `flat`, a tensor laid out like its bucket, as one 1-D piece.
  at::Tensor piece(int parameter, const at::Tensor& flat) const;
  /// The part of `rank`'s slice that belongs to the parameter, counted from the slice's first element.
  Range range_in_slice(int parameter, int rank) const { return store_->range_in_slice(parameter, rank); }
  /// A tensor with the parameter's sizes as one such 1-D piece; a copy unless it has the parameter's strides.
  at::Tensor flattened(int parameter, const at::Tensor& tensor) const;
  /// Zeroes the alignment and padding between the parameters of `flat`, a tensor laid out like the bucket.
  void clear_padding(int bucket, const at::Tensor& flat) const;

  /// Whether the parameter is still in its bucket: Module::to, set_data and the like move it out.
  bool in_place(int parameter) const;
  /// Tells autograd that the values of trained parameters have changed: backward over a graph recorded before
  /// now fails, as it must.
  void bump_versions() const;
  /// Records that the program has written to parameters of the bucket. One thread at a time.
  void note_written(int bucket) { written_[bucket] = true; }
  /// Copies what the program has written since the last call into the master weights. All slices must have
  /// their values.
  void follow_writes();

  int64_t numel() const;          // of trained parameters, without padding
  int64_t whole_numel() const;    // of those whose values this rank keeps whole, in its own memory
  int64_t numel_brought() const;  // of those whose values are in files or in host memory

 private:
  // From when the parameter moved in: the user may change the tensor's own.
  struct Shape {
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    int64_t numel;
  };

  /// Of trained parameters in buckets for which `counts` holds.
  template <typename Counts>
  int64_t numel_where(const Counts& counts) const {
    int64_t total = 0;
    for (size_t index = 0; index < trained_parameters_; ++index)
      total += counts(bucket_of(static_cast<int>(index))) ? shapes_[index].numel : 0;
    return total;
  }
  const Placement& placement(int parameter) const { return store_->layout().placements[parameter]; }
  const StateTensor& values(int bucket) const { return store_->at(bucket, kValue); }
  at::Tensor allocate_values(int bucket);
  void move_in(int bucket);
  void fill(int parameter, at::Tensor place) const;
  void keep(int bucket, at::Tensor flat, const at::Tensor& exact);
  void follow_writes(int bucket);
  at::Tensor written_on_host(int bucket);
  void write_master(int bucket, const at::Tensor& values);
  void leave();
  at::Tensor values_to_leave(int bucket) const;

  SliceStore* store_;
  Communicator* communicator_;
  Device* device_;
  std::vector<NamedParameter> parameters_;
  std::vector<Shape> shapes_;  // one a parameter
  size_t trained_parameters_ = 0;
  BucketOptions options_;
  int rank_;
  int trained_count_ = 0;
  std::unique_ptr<StorageOwner[]> owners_;  // one a bucket; null when unmarked
  std::vector<c10::Storage> storages_;
  std::vector<std::string> labels_;
  std::vector<bool> shared_;
  std::unique_ptr<SharedGathers> shared_gathers_;
  std::vector<at::Tensor> own_values_;  // mostly undefined
  std::vector<bool> given_up_;
  std::vector<bool> written_;  // and not yet followed
  at::Tensor on_host_;         // room for a shard that the program has written to
};

}  // namespace zerorun
