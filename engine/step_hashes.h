// Hashes of what an optimizer step does to each parameter, for the run log: of the gradients that the
// optimizer gets (the mean over ranks and micro-steps before clipping, without the loss scale, in fp32), and
// of the values that it leaves (in the parameter's dtype, with the master weights if values are rounded).
// Owned by EngineState, used by its thread. On a GPU each hashed tensor is copied to the host, which waits.
//
// [Note: hashes add up] A hash is the sum over elements of bits mixed with the element's index in the whole
// parameter (device/element_hash.h). So it depends neither on slices, chunks and tensor ranks' parts nor on
// where state lies. Each element is counted on one rank: the data rank that owns its slice, and of the data
// groups that have the parameter the one that counts it in the norm (BucketLayout::counted).
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/mesh.h"
#include "engine/model_parameters.h"
#include "monitor/run_record.h"
#include "optim/shard_optimizer.h"
#include "zero/buckets.h"
#include "zero/slice_store.h"

namespace zerorun {

/// The parameters of the model in the order of RunRecord. To be called before keep_stage().
std::vector<LoggedParameter> logged_parameters(const ModelParameters& parameters);

class StepHashes {
 public:
  /// All arguments but `parameters` must outlive this object. `parameters`: of the whole model.
  StepHashes(const std::vector<LoggedParameter>& parameters, SliceStore& store, const Buckets& buckets,
             const std::vector<NamedTensor>& unbucketed, const Mesh& mesh);

  /// Whether share_start() has not been called yet, or not since restart().
  bool is_before_start() const { return is_before_start_; }
  /// To be called when a checkpoint has been loaded: the next update begins with other values.
  void restart() { is_before_start_ = true; }
  /// The hashes of the values of all parameters, frozen ones too. A collective.
  HashText share_start();
  /// Begins a step: hashes this rank's slices of the gradients, each divided by `divisor`.
  void begin_step(double divisor);
  /// Hashes a shard before its update, to find what others have changed since the last one. As the next
  /// function it leaves out shards of other ranks' slices.
  void look_at(const Shard& shard);
  /// Hashes the values that an update has left in a shard.
  void add_values(const Shard& shard);
  /// Sums this step's hashes over ranks. A collective.
  void share_step();
  /// Those of the last step that was shared. If nothing was updated, `values` are left out.
  void add_to(StepRecord& record) const;

 private:
  using Sums = std::vector<std::atomic<uint64_t>>;

  bool is_counted(int bucket) const { return store_->layout(bucket).counted; }
  template <typename Visit>
  void for_each_run(int parameter, int64_t begin, int64_t numel, const Visit& visit) const;
  bool is_left_out(const Shard& shard) const {
    return shard.rank != store_->rank() || !is_counted(shard.bucket);
  }
  void add_shard(Sums& sums, const Shard& shard, const at::Tensor& values, uint32_t salt);
  void add(Sums& sums, int parameter, const at::Tensor& values, int64_t begin, uint32_t salt);
  void add_others();
  void all_reduce(std::span<uint64_t> sums, const std::string& label);

  SliceStore* store_;
  const Buckets* buckets_;
  const std::vector<NamedTensor>* unbucketed_;
  const Mesh* mesh_;
  std::unordered_map<std::string, size_t> places_;  // by name: the place in RunRecord::parameters
  std::vector<size_t> place_of_;                    // by parameter of the buckets
  size_t trained_ = 0;
  Sums gradients_, values_;  // by place
  /// What updates change, which is the master weights if values are rounded, of this rank's slices: before
  /// the update, after it, and after the one before.
  Sums before_, after_;
  std::vector<uint64_t> left_;
  bool is_before_start_ = true;
  bool is_updated_ = false;
  HashText shared_gradients_, shared_values_;
  std::vector<int64_t> written_;
};

}  // namespace zerorun
