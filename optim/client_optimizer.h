// Applies the program's torch::optim optimizer to shards. Only element-wise optimizers are allowed: they
// update an element from its own gradient and state, so a slice of a bucket can take the place of a
// parameter.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "optim/shard_optimizer.h"

namespace zerorun {

/// Throws UserError unless `optimizer` is an Adam, AdamW, SGD, Adagrad or RMSprop that has not been stepped.
void check_client_optimizer(const torch::optim::Optimizer& optimizer);

/// Replaces the parameters in the groups of `optimizer` with shards and puts its state in borrowed memory.
/// `optimizer` must have passed check_client_optimizer(). `optimizer`, `device` and `access` must outlive the
/// result, whose destructor restores `optimizer`. step() reads the facts on the host, so on a device with
/// streams each step waits for them.
std::unique_ptr<ShardOptimizer> make_client_optimizer(torch::optim::Optimizer& optimizer,
                                                      std::vector<Shard> shards, const BorrowMoment& borrow,
                                                      Device& device = cpu_device(),
                                                      StateAccess& access = state_in_memory());

}  // namespace zerorun
