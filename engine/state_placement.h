// Applies the config's offload_optimizer and offload_param to an engine: which state of its slices is kept in
// files. Internal to engine/.
#pragma once

#include <string>
#include <vector>

#include "comm/mesh.h"
#include "config/config_types.h"
#include "engine/model_parameters.h"
#include "engine/options.h"
#include "zero/slice_store.h"

namespace zerorun {

/// Where the config wants optimizer states and master weights: `none` also at a stage that leaves them whole
/// on every rank, where offload_optimizer has no effect.
OffloadDevice optimizer_offload(const ZeroConfig& zero);
/// Where the config wants slices of parameters: `none` also at a stage that does not partition parameters,
/// where offload_param has no effect.
OffloadDevice parameter_offload(const ZeroConfig& zero);

/// Throws UserError if the config asks for files and the optimizer is the program's own. The error names the
/// section.
void check_offload_options(const Config& config, const InitializeOptions& options);

/// Rank 0 logs where each state is kept.
void log_offload(const Config& config, const SliceStore& store, const Communicator& communicator);

/// Makes `store` keep master weights, moments and values in files, if the config asks for that and the host
/// updates them. `parameters`: the parameters in the store's layout. Throws UserError on all ranks if that
/// fails on any rank.
void keep_states_in_files(SliceStore& store, const Config& config, const InitializeOptions& options,
                          const BucketOptions& kinds, const std::vector<NamedParameter>& parameters,
                          const Mesh& mesh);

}  // namespace zerorun
