// Decisions and checks of initialize() before it moves any tensor: pure functions of the config, the options
// and the parameters. Any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "config/config.h"
#include "engine/model_parameters.h"
#include "engine/options.h"
#include "zero/layout.h"
#include "zero/stage.h"

namespace zerorun {

/// What the run's ZeRO stage does, with the config's choice for pipelines.
StagePolicy policy_of(const Config& config);

/// Throws UserError for a tensor of the model that is on LibTorch's meta device and so has no values, unless
/// the ranks are on that device too (plan/).
void check_not_on_meta(const Model& model, c10::Device of_ranks);

/// Throws UserError unless exactly one of config and options has an optimizer, and this optimizer can work on
/// shards.
void check_one_optimizer(const Config& config, const InitializeOptions& options);

/// The mesh of the job: the sizes that the program or the config gives; if neither, all ranks are data ranks.
/// A collective if there are several data groups. Throws UserError if the two differ, or do not fit the
/// ranks.
Mesh make_mesh(const Config& config, const InitializeOptions& options, std::shared_ptr<Communicator> world);

/// Throws UserError if the mesh has replicas, and a setting of the config cannot be used with them.
void check_replicas(const Config& config, const Mesh& mesh);
/// Whether gradients are sent in 8 bits: ranks that share memory send none, and those of one group of sums
/// (zerorun.sum_group) are summed exactly.
bool quantizes_gradients(const Config& config, const Mesh& mesh);
/// Makes the groups of neighbouring ranks that the config asks for, if they have something to do: those in
/// which parameters have second copies (zero_hpz_partition_size), and those that are summed exactly before
/// gradients are sent in 8 bits (the groups of sums over CPU tensors, if all have one size). A collective.
/// Throws UserError if the ranks cannot be divided so.
void make_neighbour_groups(const Config& config, Mesh& mesh);

/// Throws UserError if the config's batch sizes were resolved for another number of data ranks.
void check_data_size(const Config& config, const Mesh& mesh);

/// Places trained parameters and partitioned frozen parameters in buckets, with the alignment that the
/// mesh's device needs.
Layout make_model_layout(const ModelParameters& model, const Config& config, const InitializeOptions& options,
                         const Mesh& mesh);

/// Every setting that must be the same on all ranks, as text to compare.
std::string describe_settings(const Config& config, const InitializeOptions& options);

}  // namespace zerorun
