// Saves an engine's state to a checkpoint and loads it: which files each rank writes, and which ranges it
// reads. Collectives; used by the engine's thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/file_system.h"
#include "engine/engine_state.h"

namespace zerorun {

/// Engine::save_checkpoint(), to the file system of `state.checkpoints`.
std::filesystem::path save_checkpoint(EngineState& state, const std::filesystem::path& directory,
                                      const std::string& tag, const CheckpointOptions& options);

/// Engine::load_checkpoint().
RestoredCheckpoint load_checkpoint(EngineState& state, const std::filesystem::path& directory,
                                   const std::string& tag, const RestoreOptions& options,
                                   checkpoint::FileSystem& files);

/// Throws UserError on all ranks if their `words`, which say what they load, differ. A collective.
void check_same_words(const std::string& words, Communicator& communicator, const std::string& label);

/// Why generations in memory lack what the program gives this checkpoint; empty: they have it.
/// `gives_client_state`: whether it does so for generations too.
std::string why_not_held(const CheckpointOptions& options, bool gives_client_state);

/// Engine::load_newest().
std::optional<RestoredCheckpoint> load_newest(EngineState& state, const std::filesystem::path& directory,
                                              const RestoreOptions& options, checkpoint::FileSystem& files);

/// Engine::save_16bit_model().
void save_16bit_model(EngineState& state, const std::filesystem::path& directory, const std::string& filename,
                      bool exclude_frozen, checkpoint::FileSystem& files);

}  // namespace zerorun
