// Optimizers whose formulas need whole parameters. Since each rank updates only slices, their steps
// communicate. Owned by the engine, used by its thread; all ranks make the same calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "optim/shard_optimizer.h"
#include "zero/buckets.h"

namespace zerorun {

/// Lamb with the trust ratio of whole parameters. `shards` covers all of `buckets`, in order; `groups` has
/// one LambConfig per parameter group. `store`, `buckets`, `communicator`, `device` (which has the shards)
/// and `access` must outlive the result.
std::unique_ptr<ShardOptimizer> make_lamb_optimizer(const std::vector<OptimizerConfig>& groups,
                                                    std::vector<Shard> shards, const BorrowMoment& borrow,
                                                    const SliceStore& store, const Buckets& buckets,
                                                    Communicator& communicator, Device& device,
                                                    StateAccess& access);

/// Muon for groups with a MuonConfig, whose parameters have two dimensions or more; AdamW for the others.
/// `head_rows`: the rows of an attention head, by parameter of `buckets`; 0: not divided into heads.
std::unique_ptr<ShardOptimizer> make_muon_optimizer(std::vector<OptimizerConfig> groups,
                                                    std::vector<Shard> shards, const BorrowMoment& borrow,
                                                    const SliceStore& store, const Buckets& buckets,
                                                    Communicator& communicator, StateAccess& access,
                                                    std::vector<int64_t> head_rows);

/// Splits each group in two: parameters that Muon updates, then the other parameters.
std::vector<OptimizerConfig> split_for_muon(const std::vector<OptimizerConfig>& groups);
/// The index of the split group for a parameter of `group`. Muon updates parameters with two dimensions or
/// more whose names do not mark them as embedding or output layers (DeepSpeed's set_optimizer_flags).
int group_for_muon(int group, const std::string& name, int64_t dimensions);

}  // namespace zerorun
