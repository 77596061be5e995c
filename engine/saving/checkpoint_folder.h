// Reserves a folder of checkpoints before the training that saves into it. Used by the program's thread.
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/file_system.h"
#include "checkpoint/folder_lock.h"
#include "comm/communicator.h"

namespace zerorun {

/// Creates `directory` if it is missing, tries to write there, and takes its lock on rank 0: while the result
/// lives, no other job saves checkpoints into the folder. `node_local` (Config::node_local_checkpoints): the
/// first rank of each host does so, unless the folder is that of rank 0. Without this call, the first save
/// does the same. Throws UserError on all ranks if nothing can be written there, or if another job saves into
/// the folder; the message names that job's process and host. A collective. `files` must outlive the result.
[[nodiscard]] std::shared_ptr<checkpoint::FolderLock> reserve_checkpoint_folder(
    const std::filesystem::path& directory, Communicator& communicator, bool node_local = false,
    checkpoint::FileSystem& files = checkpoint::local_file_system());

}  // namespace zerorun
