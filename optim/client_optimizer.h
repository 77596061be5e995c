// A user's own torch::optim optimizer, pointed at the shards. Element-wise optimizers only: they update an
// element from that element's gradient and state alone, so a slice of a bucket is as good as a parameter.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "optim/shard_optimizer.h"

namespace zerorun {

/// Throws UserError unless `optimizer` is an Adam, AdamW, SGD, Adagrad or RMSprop that has not been stepped.
void check_client_optimizer(const torch::optim::Optimizer& optimizer);

/// `optimizer` (checked; outlives the result, as `device` and `access` do) from now on holds shards where its
/// groups held parameters, and its state is in what it has borrowed. On a device with streams each step waits
/// for the facts.
std::unique_ptr<ShardOptimizer> make_client_optimizer(torch::optim::Optimizer& optimizer,
                                                      std::vector<Shard> shards, const BorrowMoment& borrow,
                                                      Device& device = cpu_device(),
                                                      StateAccess& access = state_in_memory());

}  // namespace zerorun
