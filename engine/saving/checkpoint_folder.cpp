#include "engine/saving/checkpoint_folder.h"

#include <string>

#include "base/error.h"
#include "base/file_path.h"
#include "comm/agreement.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

std::shared_ptr<checkpoint::FolderLock> take(const fs::path& directory, checkpoint::FileSystem& files) {
  checkpoint::make_folders(files, directory);
  return files.lock_folder(directory);
}

// What the lock's file says of its owner; empty if nothing.
std::string owner_of_lock(const fs::path& directory, checkpoint::FileSystem& files) {
  std::string text;
  failure_of([&] { text = read_text(files, directory / checkpoint::kLockName).value_or(""); });
  return text;
}

}  // namespace

std::shared_ptr<checkpoint::FolderLock> reserve_checkpoint_folder(const fs::path& directory,
                                                                  Communicator& communicator, bool node_local,
                                                                  checkpoint::FileSystem& files) {
  const std::string label = "reserving a folder for checkpoints";
  const bool is_rank_0 = communicator.rank() == 0;
  std::shared_ptr<checkpoint::FolderLock> lock;
  on_all_ranks(communicator, label, [&] {
    check_path(directory, "", "reserve_checkpoint_folder");
    if (is_rank_0) lock = take(directory, files);
  });
  if (!node_local) return lock;
  const std::string of_rank_0 =
      exchange_texts(is_rank_0 ? owner_of_lock(directory, files) : "", communicator, label).front();
  on_all_ranks(communicator, label, [&] {
    if (is_rank_0 || !communicator.is_first_on_host()) return;
    if (!of_rank_0.empty() && owner_of_lock(directory, files) == of_rank_0) return;  // a common folder
    lock = take(directory, files);
  });
  return lock;
}

}  // namespace zerorun
