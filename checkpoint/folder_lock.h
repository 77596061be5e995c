// The lock with which one job at a time saves into a folder of checkpoints. A job keeps the lock until the
// last engine that has saved there ends; the engines of one process share the lock and take turns. If the
// process ends in any way, the system releases the lock.
//
// [Note: the lock's file] The lock is an flock() of the file kLockName in the folder. While the lock is held,
// the file says who holds it; else it is empty. It is never removed: two jobs that lock different files of
// this name would not see each other. A forked child closes its copy of the descriptor: otherwise a child
// that outlives its parent would keep the folder locked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace zerorun::checkpoint {

inline constexpr const char* kLockName = ".zerorun-lock";

/// Any thread.
class FolderLock {
 public:
  explicit FolderLock(bool is_locked) : is_locked_(is_locked) {}
  virtual ~FolderLock() = default;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// False if the file system has no locks: other jobs may save into the folder too.
  bool is_locked() const { return is_locked_; }
  /// Throws UserError if the lock keeps no one out any more, because its file was removed or replaced.
  virtual void check() const {}
  /// Held by the publication of this process that writes into the folder now.
  std::timed_mutex& turn() { return turn_; }

  // What the holder of the turn knows of the folder.
  bool is_swept = false;                      // leftovers of earlier jobs have been removed
  std::optional<int64_t> newest_saving = {};  // the highest saving number of the folder's checkpoints

 private:
  bool is_locked_;
  std::timed_mutex turn_;
};

/// Takes the lock of a folder of the local file system; if this process has it already, returns the same
/// object. Waits a second for another process that is about to end. Throws UserError that names the process
/// and the host which hold the lock, or says why nothing can be written into the folder. Logs a warning if
/// the file system has no locks.
std::shared_ptr<FolderLock> lock_local_folder(const std::filesystem::path& folder);

/// Returns this host's name.
std::string host_name();

}  // namespace zerorun::checkpoint
