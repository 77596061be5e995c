// Optimizers that look at whole parameters though each rank updates slices of them: their steps communicate.
// Owned by the engine, used by its thread; all ranks call them alike.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "optim/shard_optimizer.h"
#include "zero/buckets.h"

namespace zerorun {

/// Lamb: the trust ratio of a parameter is that of the whole parameter. `shards` of all of `buckets`, in
/// order, which outlive the result as `communicator`, `device` (theirs) and `access` do; one config a group,
/// all Lamb's.
std::unique_ptr<ShardOptimizer> make_lamb_optimizer(const std::vector<OptimizerConfig>& groups,
                                                    std::vector<Shard> shards, const BorrowMoment& borrow,
                                                    const Buckets& buckets, Communicator& communicator,
                                                    Device& device, StateAccess& access);

/// Muon for the groups of that type, which hold parameters of two dimensions or more, AdamW for the others.
std::unique_ptr<ShardOptimizer> make_muon_optimizer(std::vector<OptimizerConfig> groups,
                                                    std::vector<Shard> shards, const BorrowMoment& borrow,
                                                    const Buckets& buckets, Communicator& communicator,
                                                    StateAccess& access);

/// Of each group two: the parameters that Muon updates, then the others.
std::vector<OptimizerConfig> split_for_muon(const std::vector<OptimizerConfig>& groups);
/// Which of them a parameter of `group` is in. Muon updates what has two dimensions or more and is no
/// embedding or output layer by its name (DeepSpeed's set_optimizer_flags).
int group_for_muon(int group, const std::string& name, int64_t dimensions);

}  // namespace zerorun
