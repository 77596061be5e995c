// The engines of a random program: its own, and those beside it.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "engine/engine.h"
#include "engine/zero_redundancy_optimizer.h"
#include "tests/random_programs/checks.h"
#include "tests/random_programs/model.h"

namespace zerorun::testing {

/// The ds_config.json text of `setup`.
std::string config_of(const Setup& setup);

/// An engine, after what it borrows from the program, so that it is destroyed first.
struct ProgramEngine {
  std::unique_ptr<torch::optim::Optimizer> optimizer;  // null if the config names one
  std::unique_ptr<torch::optim::LRScheduler> scheduler;
  std::unique_ptr<ZeroRedundancyOptimizer> zero;  // under enable_zero()
  std::optional<Engine> own;
  std::string moment = {};          // name of the first moment
  bool last_save_failed = false;    // wait_for_checkpoint() throws again then
  std::string optimizer_file = {};  // what torch::save(optimizer) has written
  Engine& get() { return zero ? zero->engine() : *own; }
};

/// The rank among those of its data group; data groups are neighbours.
inline int rank_in_group(const Setup& setup, const Communicator& world) {
  return world.rank() / setup.groups;
}

/// `swaps`: the parameter groups change places.
std::unique_ptr<ProgramEngine> make_engine(const Program& program, Model& model,
                                           std::shared_ptr<Communicator> communicator, bool swaps = false);

/// Runs an operation that the engine may refuse: what programs do to gradients, to the engine's state and to
/// its settings. `text`: the operation's.
void run_change(const Operation& operation, const std::string& text, ProgramEngine& running, Model& model,
                const std::filesystem::path& folder, JournalReader& reader);
/// The name of the checkpoint that the operation saves or loads.
std::string tag_of(const Operation& operation);

/// Makes and uses a second engine while the program has one: Kind::companion. It saves into `folder`.
void run_companion(const Program& program, const Operation& operation,
                   const std::shared_ptr<Communicator>& communicator, const std::filesystem::path& folder);
/// The result of an engine without an optimizer: Kind::evaluator. `tag`: the checkpoint in `folder` that it
/// loads, or empty.
at::Tensor run_evaluator(const Program& program, const Operation& operation,
                         const std::shared_ptr<Communicator>& communicator,
                         const std::filesystem::path& folder, const std::string& tag);

}  // namespace zerorun::testing
