// Moves a model's parameters into buckets. A bucket is one storage, and its parameters are views of that
// storage. The storage of a whole bucket always has memory. For a partitioned bucket this rank keeps its
// slice, and Residency gives the storage memory around uses. Owned by the engine. After construction only the
// values change.
//
// [Note: shared buckets] Ranks that share memory keep one copy of a bucket's values, whether the bucket is
// whole or partitioned. The slices are adjacent in that memory, and each rank writes its own slice. A gather
// copies nothing and only waits for the other ranks. If ranks are on several hosts, each host keeps a copy of
// the whole buckets, and a gather brings it the slices of the other hosts. The parameters are accessible only
// around uses. Each rank's program writes to a private copy of the bucket (zero/shared_writes.h).
//
// [Note: split parameters] Of a split parameter a bucket has this tensor rank's part, and the user's leaf has
// the part's sizes. Operators on the leaf go to an OperatorRule (tensor_parallel/), which computes with
// local_view()s. So a bucket of split parameters has two storages: the leaves are views of the first, whose
// operators go to the rule, and which never has memory; local views are views of the second, whose operators
// go to the listener.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "comm/agreement.h"
#include "comm/communicator.h"
#include "zero/bucket_options.h"
#include "zero/interception.h"
#include "zero/layout.h"
#include "zero/master_weights.h"
#include "zero/shared_gathers.h"
#include "zero/slice_store.h"
#include "zero/split.h"

namespace zerorun {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;  // the user's leaf
  int group;          // parameter group, or kFrozen
  Share share = Share::whole;
  std::shared_ptr<const Split> split = {};  // set if `share` is split
  /// The ranks of the pipeline stages that have this parameter too, with this one's; null if there is
  /// only this stage. It is in a bucket of its own. Initial values are those of rank 0.
  std::shared_ptr<Communicator> tied = {};
};

/// The number of elements that tensor rank `rank` has of a parameter that is still whole.
int64_t numel_of_part(const NamedParameter& parameter, int rank);

/// How the values of a marked bucket are stored; Residency treats the bucket accordingly.
class BucketKind {
 public:
  enum Value {
    whole,
    whole_shared,  // the ranks of a host keep one copy: [Note: shared buckets]
    partitioned,
    partitioned_shared,  // likewise
    gathered_once,       // partitioned; the ranks of a host gather it into one buffer: [Note: shared gathers]
  };
  constexpr BucketKind(Value value = whole) : value_(value) {}  // implicit: a value is a kind

  friend constexpr bool operator==(BucketKind, BucketKind) = default;
  /// Whether the memory that holds the whole bucket exists only from a gather to the release after it.
  constexpr bool comes_and_goes() const { return value_ == partitioned || value_ == gathered_once; }
  /// Whether ranks share the memory of the values, so the program's writes go to a private copy, one per
  /// rank.
  constexpr bool copied_for_writes() const { return value_ != whole && value_ != partitioned; }
  /// Whether the parameters are accessible only while they are in use. All ranks have the same uses, and the
  /// values are lost when the engine is destroyed.
  constexpr bool around_uses() const { return value_ != whole && value_ != whole_shared; }
  /// Whether the program writes to temporary memory, from which the values must be copied to the slices.
  constexpr bool moves_writes() const { return value_ != whole; }

 private:
  Value value_;
};

class Buckets {
 public:
  /// Moves `parameters` into buckets on the communicator's device, as laid out by `store`. The parameters
  /// must be floating-point and dense, with frozen parameters last; they may be on any device or deferred.
  /// The store keeps values and master weights, in its files if it has files for them; `store` must outlive
  /// this object. The leaf tensors stay the same objects and get rank 0's values. During this call, at most
  /// one bucket at a time takes memory that it does not keep afterwards. A collective, which ends on all
  /// ranks even if rank 0 cannot compute deferred values: see unfilled().
  Buckets(std::vector<NamedParameter> parameters, SliceStore& store, Communicator& communicator,
          const BucketOptions& options);
  ~Buckets();
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;

  const BucketOptions& options() const { return options_; }
  /// Why rank 0 could not compute values of a deferred parameter, which are NaN then. Only rank 0 knows; the
  /// caller must throw it on all ranks.
  const Failure& unfilled() const { return unfilled_; }
  /// The first trained_count() buckets hold trained parameters, the other buckets frozen parameters.
  int trained_count() const { return trained_count_; }
  /// Whether the ranks of the host keep one copy of the bucket: [Note: shared buckets].
  bool shared(int bucket) const { return shared_[bucket]; }
  /// Whether the ranks of the host gather the bucket into one buffer: [Note: shared gathers].
  bool gathers_once(int bucket) const { return shared_gathers_ && shared_gathers_->buffer(bucket).defined(); }
  /// Null unless ranks share memory and the store keeps values in files.
  SharedGathers* shared_gathers() const { return shared_gathers_.get(); }
  BucketKind kind(int bucket) const {
    if (shared(bucket))
      return store_->layout(bucket).partitioned ? BucketKind::partitioned_shared : BucketKind::whole_shared;
    if (gathers_once(bucket)) return BucketKind::gathered_once;
    return store_->layout(bucket).partitioned ? BucketKind::partitioned : BucketKind::whole;
  }
  /// The name of the bucket in messages: "bucket 3 (transformer.h.1.mlp.c_fc.weight and 2 more)".
  const std::string& label(int bucket) const { return labels_[bucket]; }

  /// All values of a whole or shared bucket, 1-D; slice r belongs to rank r.
  const at::Tensor& flat(int bucket) const;
  /// This rank's slice of the values, 1-D. A slice in files has memory only within
  /// SliceStore::with_values().
  const at::Tensor& shard(int bucket) const { return values(bucket).own; }
  /// Whether a gather first copies the shard out of a file, or from host memory to the device.
  bool shard_is_fetched(int bucket) const {
    const Home home = values(bucket).home;
    return home == Home::file || home == Home::host;
  }
  Dtype dtype() const { return options_.dtype; }
  MasterWeights& masters() { return masters_; }
  const MasterWeights& masters() const { return masters_; }
  /// Gives the storage on which operators use the bucket's parameters memory, or takes the memory away
  /// (zero/interception.h).
  void give_memory(int bucket, void* data) const;
  void take_memory(int bucket) const;

  bool marked() const { return owners_ != nullptr; }
  /// From now on operators on marked buckets notify `listener`.
  void listen(OperatorListener* listener);
  /// From now on operators on split parameters go to `rule`.
  void set_rule(OperatorRule* rule);
  /// Returns a tensor on the memory of `tensor`, which is on the storage of a split parameter: operators on
  /// the returned tensor see the part as if it were all of the parameter. Shares the version counter.
  at::Tensor local_view(const at::Tensor& tensor) const;
  /// The parameter that `tensor`, a view of a parameter of this object, belongs to.
  int parameter_of(const at::Tensor& tensor) const;
  /// The sizes and strides that the parameter has in its bucket.
  at::IntArrayRef sizes(int parameter) const { return shapes_[parameter].sizes; }
  at::IntArrayRef strides(int parameter) const { return shapes_[parameter].strides; }
  /// The sizes of the whole parameter, of which tensor ranks may have parts.
  std::vector<int64_t> whole_sizes(int parameter) const;
  /// Marks the values of a whole bucket as incomplete: its parameters get no memory when the engine is
  /// destroyed.
  void mark_incomplete(int bucket) { incomplete_[bucket] = true; }
  /// Sets the values that the parameters of a whole shared bucket get when the engine is destroyed, instead
  /// of the shared values.
  void set_values_after_engine(int bucket, at::Tensor values) { own_values_[bucket] = std::move(values); }
  int bucket_of(const StorageOwner* owner) const {
    const auto number = static_cast<int>(owner - owners_.get());
    return number < store_->count() ? number : number - store_->count();
  }

  /// Trained parameters come first.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  std::span<const NamedParameter> trained() const { return {parameters_.data(), trained_parameters_}; }
  int bucket_of(int parameter) const { return location(parameter).bucket; }
  /// The parameter at `offset` (elements) of the bucket.
  int parameter_at(int bucket, int64_t offset) const;
  /// Returns the parameter's elements in `flat`, a tensor with its bucket's layout, as a view with the
  /// parameter's sizes and strides.
  at::Tensor view(int parameter, const at::Tensor& flat) const;
  /// Returns the parameter's elements in `flat`, a tensor with its bucket's layout, as a 1-D view.
  at::Tensor piece(int parameter, const at::Tensor& flat) const;
  /// Returns the elements of `tensor`, which has the parameter's sizes, in the 1-D order of piece(). Copies
  /// them if the strides of `tensor` differ from the parameter's.
  at::Tensor flattened(int parameter, const at::Tensor& tensor) const;
  /// Zeroes the gaps between parameters and the padding in `flat`, a tensor with the bucket's layout.
  void clear_padding(int bucket, const at::Tensor& flat) const;

  /// Whether the parameter is still a view of its bucket. Module::to, set_data and similar calls move it out.
  bool in_place(int parameter) const;
  /// Makes the parameter a view of its bucket again.
  void put_back(int parameter) const;
  /// Bumps autograd's version counters of trained parameters, because their values have changed. Backward
  /// over a graph recorded before the change then fails, as in plain LibTorch.
  void bump_versions() const;
  int64_t numel() const;  // of trained parameters, without padding
  /// Of trained parameters of which each rank has all in its memory. Of those that the ranks of each of
  /// several hosts share it counts as many as take as much.
  int64_t whole_numel() const;
  int64_t numel_fetched() const;  // of trained parameters whose values are in files or in host memory

 private:
  // The shape of a parameter when it was moved into its bucket. The program may change its tensor later.
  struct Shape {
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    int64_t numel;
  };

  /// Returns the number of elements of trained parameters in buckets for which counts(bucket) is true.
  template <typename Counts>
  int64_t numel_where(const Counts& counts) const {
    int64_t total = 0;
    for (size_t index = 0; index < trained_parameters_; ++index)
      total += counts(bucket_of(static_cast<int>(index))) ? shapes_[index].numel : 0;
    return total;
  }
  const ParameterLocation& location(int parameter) const { return store_->layout().locations[parameter]; }
  const StateTensor& values(int bucket) const { return store_->at(bucket, kValue); }
  at::Tensor allocate_values(int bucket);
  void move_in(int bucket);
  /// `flat`: the bucket's memory, needed only if buckets are not marked.
  at::Tensor view_of_bucket(int parameter, const at::Tensor& flat) const;
  /// What access to the storage without memory throws.
  std::string message_without_memory(int bucket) const;
  bool is_split(int bucket) const { return store_->layout(bucket).share == Share::split; }
  void fill(int parameter, at::Tensor place);
  void fill_for_tensor_ranks(int parameter, at::Tensor place);
  void make_given_values(int parameter, at::Tensor place) const;
  void keep(int bucket, at::Tensor flat, const at::Tensor& exact);
  void leave();
  at::Tensor values_to_leave(int bucket) const;

  SliceStore* store_;
  Communicator* communicator_;
  Device* device_;
  std::vector<NamedParameter> parameters_;
  std::vector<Shape> shapes_;  // one per parameter
  size_t trained_parameters_ = 0;
  BucketOptions options_;
  MasterWeights masters_;
  int rank_;
  int trained_count_ = 0;
  /// One per bucket, and then one per bucket for local views; null if not marked.
  std::unique_ptr<StorageOwner[]> owners_;
  std::vector<c10::Storage> storages_;
  std::vector<c10::Storage> local_storages_;  // by bucket: of local views; empty handles if not split
  std::vector<std::string> labels_;
  std::vector<bool> shared_;
  std::unique_ptr<SharedGathers> shared_gathers_;
  std::vector<at::Tensor> own_values_;  // by bucket: set by set_values_after_engine(), else undefined
  std::vector<bool> incomplete_;
  Failure unfilled_;
};

}  // namespace zerorun
