// What the config says of forwards: autocast, and which of the blocks are recomputed in backward.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "activations/marked_modules.h"
#include "activations/recomputation.h"
#include "base/error.h"
#include "base/file_path.h"
#include "base/log.h"
#include "base/process.h"
#include "checkpoint/file_system.h"
#include "comm/agreement.h"
#include "engine/engine_state.h"

namespace zerorun {
namespace {

// Micro-batches between their forward and their backward on this rank.
int64_t micro_batches_in_flight(const EngineState& state) {
  if (!state.stage) return 1;
  const int64_t stages = state.mesh.sizes().pipeline, stage = state.mesh.coordinates().pipeline;
  return std::min(stages - stage, state.config.batch.gradient_accumulation_steps);
}

// The file for inputs of recomputed blocks; null if they stay in memory.
std::shared_ptr<ScratchFile> file_of_inputs(const Config& config, Communicator& ranks) {
  const std::filesystem::path folder = config.recompute.nvme_path;
  if (folder.empty()) return nullptr;
  ScratchFileOptions options{.folder = folder,
                             .key = "zerorun.recompute.nvme_path",
                             .rank = ranks.rank(),
                             .threads = static_cast<int>(config.zero.aio.threads),
                             .timeout = ranks.timeout(),
                             .sizes_only = ranks.device().location().is_meta()};
  std::shared_ptr<ScratchFile> file;
  const auto make = [&] {
    file = kept_by_forks(std::make_shared<ScratchFile>(checkpoint::local_file_system(), std::move(options)));
  };
  if (options.sizes_only) {
    make();
    return file;
  }
  on_all_ranks(ranks, "making a file for " + options.key, [&] {
    check_path(folder, "", "initialize");
    std::error_code failed;
    std::filesystem::create_directories(folder, failed);  // if this fails, make() reports why
    make();
  });
  return file;
}

}  // namespace

AutocastState EngineState::autocast_state() const {
  AutocastState state;
  if (config.precision.autocast) state.enable(mesh.world().device().location().type(), at::kBFloat16);
  return state;
}

void EngineState::start_recomputation(bool has_pipeline) {
  RecomputeConfig chosen = config.recompute;
  if (config.pipeline.recomputed_group > 0 && has_pipeline) {
    chosen.every = 1;
    chosen.patterns.clear();
    chosen.budget.reset();
  }
  const bool recomputes = chosen.every > 0 || !chosen.patterns.empty() || chosen.budget;
  // Python recomputes its modules by itself, and asks only for what a budget chooses.
  if (!recomputes || computes_only || (!model.module && !chosen.budget)) return;
  const bool splits = has_tensor_plan && mesh.sizes().tensor > 1;
  recomputation = std::make_shared<Recomputation>(
      chosen,
      InputHome{.tensor_ranks = chosen.partitioned && splits ? &mesh.along(MeshAxis::tensor) : nullptr,
                .on_host = chosen.on_host,
                .device = mesh.world().device().location(),
                .file = model.module ? file_of_inputs(config, mesh.world()) : nullptr,
                .buffer = chosen.contiguous ? std::make_shared<KeptBuffer>(chosen.checkpoints) : nullptr});
  if (!model.module) return;
  marked_modules = std::make_unique<MarkedModules>(*model.module, recomputation);
  for (const std::string& pattern : chosen.patterns) {
    if (has_pipeline || marked_modules->has(pattern)) continue;
    throw UserError("zerorun.recompute.patterns: \"" + pattern +
                    "\" names no module of the model; * stands for one part of a name, as in \"h.*.mlp\"");
  }
  if (mesh.world().rank() != 0) return;
  if (chosen.partitioned && !splits)
    log_info("activation_checkpointing.partition_activations has no effect without tensor ranks");
  if (!chosen.nvme_path.empty())
    log_info("inputs of recomputed blocks are in a file of " + chosen.nvme_path + " until their backward");
  if (chosen.on_host && !mesh.data().device().streams().asynchronous())
    log_info(
        "activation_checkpointing.cpu_checkpointing has no effect: activations are in host memory already");
}

void EngineState::spend_recomputation_budget() {
  if (!recomputation || !recomputation->is_undecided()) return;
  const std::string decision =
      recomputation->decide(mesh.world(), mesh.coordinates().pipeline, micro_batches_in_flight(*this));
  if (mesh.world().rank() == 0) log_info(decision);
}

}  // namespace zerorun
