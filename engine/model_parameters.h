// What a module brings to initialize(): which parameters are trained, in which group, and what else all ranks
// share.
#pragma once

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "comm/communicator.h"
#include "engine/options.h"
#include "zero/buckets.h"

namespace zerorun {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  std::optional<Dtype> dtype = {};  // what it is to be converted to
  bool is_buffer = false;
};

struct ModelParameters {
  std::vector<NamedParameter> trained;  // require grad; tied ones once, under their first name
  std::vector<NamedParameter> frozen;   // the ones that are partitioned, in group kFrozen
  std::vector<NamedTensor> others;      // buffers and frozen parameters that stay whole
};

/// Collects and checks. The group of a parameter comes from `options.optimizer`, else
/// options.parameter_groups, else is 0; where the config names Muon, see group_for_muon(). Frozen
/// floating-point parameters are partitioned as config.zero says, and converted as config.precision says,
/// buffers likewise. Throws UserError naming a parameter that cannot be trained here or is in no group, or in
/// two.
ModelParameters collect_parameters(torch::nn::Module& model, const Config& config,
                                   const InitializeOptions& options);

/// Throws UserError on every rank unless all ranks have the same parameters and `settings` (whatever else
/// must agree).
void check_ranks_agree(const ModelParameters& model, const std::string& settings, Communicator& communicator);

/// `root`'s values on all ranks.
void broadcast_tensor(const NamedTensor& tensor, int root, Communicator& communicator);
/// Rank 0's values on the devices of all ranks, converted.
void broadcast_others(const ModelParameters& model, Communicator& communicator);

}  // namespace zerorun
