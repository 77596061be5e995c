// Collects what a rank writes of a checkpoint. Used by the engine's thread.
#pragma once

#include <string>

#include "engine/engine_state.h"
#include "engine/saving/checkpoint_writer.h"

namespace zerorun {

enum class ReadTime {
  later,    // by the writer's thread, while training goes on
  at_once,  // before anything changes: nothing is copied, and no file of an earlier checkpoint is named
};

/// Fills `part` with this rank's files and its part of the manifest. Its directory and the other options of
/// the save are left as they are.
void fill_part(EngineState& state, const std::string& tag, const CheckpointOptions& options, ReadTime time,
               CheckpointPart& part);

}  // namespace zerorun
