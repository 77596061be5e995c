// A model's parameters, moved into buckets: a bucket is one storage, parameters are views into it. A whole
// bucket keeps its memory; of a partitioned one this rank keeps its slice, and residency.h gives the storage
// memory around uses. Owned by the engine; immutable once made, but for the values.
//
// [Note: shared buckets] Where ranks share memory, a bucket's values are there once for all of them, whole or
// partitioned: the slices lie side by side, each written by its owner, and a gather copies nothing, it waits
// for the owners. Parameters are accessible around uses only; what the program writes to them goes to a copy
// of this rank's (residency.h).
//
// [Note: master weights] Parameters in 16 bits are rounded copies of fp32 master weights, which this rank
// keeps for the slices that it updates. Only the optimizer writes to both. Operators by which the program
// writes to a parameter are told to the listener, who calls note_written(); what they wrote is taken over by
// follow_writes() before the next update.
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

/// How the values of a marked bucket are there: what happens to it follows from these answers.
struct BucketKind {
  /// Memory for all values is there from a gather to a release only.
  bool comes_and_goes = false;
  /// Ranks share the memory of the values, so what the program writes goes to a copy of this rank's.
  bool copied_for_writes = false;
  /// The parameters are accessible around uses only, which all ranks come to alike; their values go with the
  /// engine.
  bool around_uses = false;

  /// Whether what the program writes does not stay where it is written.
  bool moves_writes() const { return comes_and_goes || copied_for_writes; }
};

struct BucketOptions {
  /// Operators on the parameters are told to the listener given to listen(); partitioned buckets must be.
  bool marked = false;
  bool shared = false;            // marked buckets lie in memory that the ranks share, or are gathered there
  Dtype dtype = Dtype::fp32;      // of the values; under a 16-bit one trained buckets have master weights
  bool master_from_fp32 = false;  // they start from the parameters as given, not as rounded to `dtype`
  bool whole_master = false;      // this rank keeps those of all slices, not only of its own
  bool master_on_host = false;    // in the host's memory, and of fp32 values too
  bool shards_on_host = false;    // of partitioned buckets the slices too
};

/// Whether a bucket has master weights: trained, under a 16-bit dtype; and where the host updates what it
/// would not have otherwise.
inline bool has_master(const BucketLayout& layout, const BucketOptions& options) {
  if (layout.group == kFrozen) return false;
  return options.dtype != Dtype::fp32 ||
         (options.master_on_host && !(options.shards_on_host && layout.partitioned));
}

class Buckets {
 public:
  /// Moves `parameters` (floating-point, dense, on any device, or deferred; frozen ones last) into buckets on
  /// the communicator's device as the layout of `store` says, which keeps values and master weights (where it
  /// has room for them in files, there) and outlives this; leaves stay the same, values are rank 0's. One
  /// bucket at a time is there in full beyond what stays.
  Buckets(std::vector<NamedParameter> parameters, SliceStore& store, Communicator& communicator,
          const BucketOptions& options);
  ~Buckets();
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;

  const BucketOptions& options() const { return options_; }
  int count() const { return store_->count(); }
  /// The first of them are of trained parameters, the rest of frozen ones.
  int trained_count() const { return trained_count_; }
  const BucketLayout& layout(int bucket) const { return store_->layout(bucket); }
  bool partitioned(int bucket) const { return layout(bucket).partitioned; }
  /// [Note: shared buckets]
  bool shared(int bucket) const { return shared_[bucket]; }
  /// Whether the ranks of the host gather it into one buffer: [Note: shared gathers].
  bool gathers_once(int bucket) const { return shared_gathers_ && shared_gathers_->buffer(bucket).defined(); }
  /// Null where no bucket does.
  SharedGathers* shared_gathers() const { return shared_gathers_.get(); }
  /// Whether memory for all values is there only from a gather on.
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
  /// This rank's slice of the values, 1-D. Where it is in files it has memory in with_shard() only.
  const at::Tensor& shard(int bucket) const { return values(bucket).own; }
  bool shard_in_files(int bucket) const { return store_->has_values_in_files(bucket); }
  /// Whether a gather brings it to the memory where this rank computes: from files, or from the host.
  bool shard_is_brought(int bucket) const {
    const Home home = values(bucket).home;
    return home == Home::file || home == Home::host;
  }
  /// Calls visit() while the shard has memory. Throws TrainingError where a disk fails.
  template <typename Visit>
  void with_shard(int bucket, ValueUse use, const Visit& visit) const {
    store_->with_values(bucket, use, visit);
  }
  /// The order in which shards will be read from now on, as far as that is known.
  void plan_reads(std::span<const ChunkOfSlice> shards) const {
    if (store_->value_files()) store_->value_files()->plan(shards);
  }
  Dtype dtype() const { return options_.dtype; }
  bool has_master(int bucket) const { return zerorun::has_master(layout(bucket), options_); }
  /// `rank`'s slice of a tensor laid out like this bucket.
  at::Tensor slice(int bucket, const at::Tensor& flat, int rank) const {
    return store_->slice_of(bucket, flat, rank);
  }
  /// What the parameters of the bucket are views of.
  const c10::Storage& storage(int bucket) const { return storages_[bucket]; }

  /// Marked buckets tell `listener` from now on.
  bool marked() const { return owners_ != nullptr; }
  void listen(OperatorListener* listener);
  /// The values of a whole bucket are incomplete for good: its parameters get no memory when the engine goes.
  void give_up(int bucket) { given_up_[bucket] = true; }
  /// The parameters of a whole, shared bucket have `values` when the engine goes, and not those of all ranks.
  void leave_with(int bucket, at::Tensor values) { own_values_[bucket] = std::move(values); }
  int bucket_of(const StorageOwner* owner) const { return static_cast<int>(owner - owners_.get()); }

  /// Trained ones first.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  std::span<const NamedParameter> trained() const { return {parameters_.data(), trained_parameters_}; }
  int bucket_of(int parameter) const { return placement(parameter).bucket; }
  /// The parameter that lies at `offset` (elements) of the bucket.
  int parameter_at(int bucket, int64_t offset) const;
  /// The parameter's place in `flat`, a tensor laid out like its bucket: same sizes and strides as the
  /// parameter.
  at::Tensor view(int parameter, const at::Tensor& flat) const;
  /// The parameter's elements in `flat`, a tensor laid out like its bucket, as one 1-D piece.
  at::Tensor piece(int parameter, const at::Tensor& flat) const;
  /// The part of `rank`'s slice that is of the parameter, counted from the slice's first element.
  Range range_in_slice(int parameter, int rank) const { return store_->range_in_slice(parameter, rank); }
  /// A strided tensor with the parameter's sizes, as one such 1-D piece: a copy where its strides are others.
  at::Tensor flattened(int parameter, const at::Tensor& tensor) const;
  /// Zeroes the alignment and padding between the parameters of `flat`, a tensor laid out like the bucket.
  void clear_padding(int bucket, const at::Tensor& flat) const;

  /// Whether the parameter still lives in its bucket (Module::to, set_data and the like move it out).
  bool in_place(int parameter) const;
  /// Tells autograd that the values of trained parameters have changed: backward over a graph recorded before
  /// now fails, as it must.
  void bump_versions() const;
  /// The program has written to parameters of the bucket. Not to be called by two threads at once.
  void note_written(int bucket) { written_[bucket] = true; }
  /// Takes into the master weights what the program has written since the last call. Slices have all their
  /// values.
  void follow_writes();

  int64_t numel() const;          // of trained parameters, without padding
  int64_t whole_numel() const;    // of those that this rank has memory for all by itself
  int64_t numel_brought() const;  // of those whose values are in files or with the host

 private:
  // As they were when the parameter moved in: the user's tensor may be given others.
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
