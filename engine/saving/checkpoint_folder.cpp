#include "engine/saving/checkpoint_folder.h"

#include "base/error.h"
#include "checkpoint/file_system.h"
#include "comm/agreement.h"

namespace zerorun {

std::shared_ptr<checkpoint::FolderLock> reserve_checkpoint_folder(const std::filesystem::path& directory,
                                                                  Communicator& communicator) {
  std::shared_ptr<checkpoint::FolderLock> lock;
  on_all_ranks(communicator, "reserving a folder for checkpoints", [&] {
    if (directory.empty()) throw UserError("the folder for checkpoints has an empty name: name a folder");
    if (communicator.rank() != 0) return;
    checkpoint::make_folders(checkpoint::local_file_system(), directory);
    lock = checkpoint::local_file_system().lock_folder(directory);
  });
  return lock;
}

}  // namespace zerorun
