// The model's tensors as initialize() needs them: which parameters are trained, in which group, and which
// other tensors all ranks share.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/saved_parameter.h"
#include "comm/mesh.h"
#include "engine/model.h"
#include "engine/options.h"
#include "zero/buckets.h"

namespace zerorun {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  std::optional<Dtype> dtype = {};  // the dtype to convert the tensor to, if any
  bool is_buffer = false;
  std::shared_ptr<Communicator> tied = {};  // as NamedParameter::tied
};

struct ModelParameters {
  std::vector<NamedParameter> trained;  // require grad; tied parameters once, under their first name
  std::vector<NamedParameter> frozen;   // frozen parameters that are partitioned, in group kFrozen
  std::vector<NamedTensor> unbucketed;  // buffers and frozen parameters that stay whole
  std::vector<NamedTensor> unsaved;     // buffers that no checkpoint has
  bool has_tensor_plan = false;         // tensor ranks share the model; see split_parameters()
  bool is_divided = false;              // pipeline stages share the model; see keep_stage()
};

/// What a rank must know of a model of which it has only a pipeline stage.
struct WholeModel {
  std::map<std::string, checkpoint::SavedParameter> tensors;  // of all stages
  std::set<std::string> buffers;
};

/// Collects the model's tensors and checks them. A parameter's group comes from `options.optimizer`, else
/// from options.parameter_groups, else is 0; if the config names Muon, see group_for_muon(). Frozen
/// floating-point parameters are partitioned as config.zero says and converted as config.precision says;
/// buffers are converted likewise. Throws UserError for a parameter that the engine cannot train, that
/// requires grad but is in no group, or that is in two groups. `may_lack_group`, if set: whether a parameter
/// is of another pipeline stage, whose ranks know its group.
ModelParameters collect_parameters(const Model& model, const Config& config, const InitializeOptions& options,
                                   const std::function<bool(const at::Tensor&)>& may_lack_group = {});

}  // namespace zerorun
