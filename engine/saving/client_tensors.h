// The program's own tensors in a checkpoint (CheckpointOptions::client_tensors): one safetensors file, which
// rank 0 writes and reads. The engine's thread.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "checkpoint/state_file.h"
#include "comm/communicator.h"

namespace zerorun {

using ClientTensors = std::map<std::string, at::Tensor>;

/// Throws UserError naming the tensor if a name or a dtype has no place in a safetensors file.
void check_client_tensors(const ClientTensors& tensors);
/// The file with copies of the tensors; without ranges if there are none.
checkpoint::FileToWrite file_of_client_tensors(const ClientTensors& tensors);
/// Rank 0 reads the tensors from the checkpoint in `folder` and compares the checksums; every rank returns
/// them, on the CPU. A collective, unless the checkpoint has none. Throws UserError on all ranks.
ClientTensors read_client_tensors(checkpoint::FileSystem& files, const std::filesystem::path& folder,
                                  const checkpoint::Manifest& manifest, Communicator& communicator);

}  // namespace zerorun
