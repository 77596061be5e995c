// A user's own torch::optim optimizer, applied to shards. Element-wise optimizers only: they update an
// element from its own gradient and state alone, so a slice of a bucket works like a parameter.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "optim/shard_optimizer.h"

namespace zerorun {

/// Throws UserError unless `optimizer` is an Adam, AdamW, SGD, Adagrad or RMSprop that has not been stepped.
void check_client_optimizer(const torch::optim::Optimizer& optimizer);

/// Replaces the parameters in the groups of `optimizer` with shards and puts its state in borrowed memory.
/// `optimizer` (checked), `device` and `access` outlive the result, whose destructor restores `optimizer`.
/// step() needs the facts in host memory, so on a device with streams each step waits for them.
std::unique_ptr<ShardOptimizer> make_client_optimizer(torch::optim::Optimizer& optimizer,
                                                      std::vector<Shard> shards, const BorrowMoment& borrow,
                                                      Device& device = cpu_device(),
                                                      StateAccess& access = state_in_memory());

}  // namespace zerorun
