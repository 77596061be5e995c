// What gpt2 adds to its checkpoints, and how it continues from one. Used by main().
#pragma once

#include <zerorun/zerorun.h>

#include <string>

#include "samples/gpt2/dataset.h"
#include "samples/gpt2/options.h"

namespace samples {

/// The client state of a checkpoint: the identity of the data.
std::string client_state(const Dataset& data);

/// Continues from a checkpoint, if there is one to continue from: --resume, or, for ranks that the launcher
/// has started again, the last checkpoint of this run. A collective. Throws UserError, also if the
/// checkpoint's run trained on other data.
zerorun::RestoredCheckpoint resume(const ProgramOptions& options, const Dataset& data,
                                   zerorun::Engine& engine, zerorun::DataPosition& position);

}  // namespace samples
