#include "checkpoint/folder_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/unique_fd.h"
#include "checkpoint/file_system.h"

namespace zerorun::checkpoint {
namespace fs = std::filesystem;
namespace {

using FileId = std::pair<dev_t, ino_t>;

struct Held {
  int file;
  std::weak_ptr<FolderLock> lock;
};

// The locks of this process, also of folders without locks. Never destroyed: locks may end after static
// objects.
struct Registry {
  std::mutex mutex;
  std::map<FileId, Held> held;
};

Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

[[maybe_unused]] const int registered =
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                     for (const auto& [id, held] : registry().held) ::close(held.file);
                     registry().held.clear();
                     registry().mutex.unlock();
                   });

std::optional<FileId> id_at(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  return FileId(status.st_dev, status.st_ino);
}

std::optional<FileId> id_of(int file) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return std::nullopt;
  return FileId(status.st_dev, status.st_ino);
}

// Says in the lock's file who holds the lock. Fails if another user has made the file; the lock needs no
// text.
void describe_owner(int file, const std::string& text) {
  if (::ftruncate(file, 0) != 0) return;
  [[maybe_unused]] const ssize_t written = ::pwrite(file, text.data(), text.size(), 0);
  if (!text.empty()) ::fdatasync(file);  // so that other hosts can read it
}

class LocalFolderLock : public FolderLock {
 public:
  LocalFolderLock(bool is_locked, fs::path path, UniqueFd file, FileId id)
      : FolderLock(is_locked), path_(std::move(path)), file_(std::move(file)), id_(id) {}
  ~LocalFolderLock() override {
    if (!home_.is_current()) {
      file_.release();  // the fork has closed it
      return;
    }
    const std::lock_guard lock(registry().mutex);
    if (is_locked()) describe_owner(file_.get(), "");
    registry().held.erase(id_);
    file_.reset();
  }
  void check() const override {
    if (!is_locked() || id_at(path_) == id_) return;
    throw UserError(path_.string() +
                    " has been removed during the save, so that another job may save here too: no checkpoint "
                    "is published");
  }

 private:
  fs::path path_;
  UniqueFd file_;
  FileId id_;
  HomeProcess home_;
};

bool has_no_locks(int error) {
  return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

// Returns false if another process has the lock.
bool lock_file(int file, bool is_others, const fs::path& path, bool& is_locked) {
  is_locked = ::flock(file, LOCK_EX | LOCK_NB) == 0;
  if (is_locked) return true;
  const int error = errno;
  if (error == EWOULDBLOCK || error == EINTR) return false;
  if (error == EBADF && is_others) {  // NFS locks only files that this user may write
    throw UserError(path.string() +
                    " was made by another user, and cannot be locked: remove it, or let the group write it");
  }
  if (!has_no_locks(error)) check_done(-error, path, "locked");
  log_warning(path.parent_path().string() +
              ": its file system has no locks, so let no other job save checkpoints there; leftovers of "
              "jobs that were killed stay");
  return true;
}

// Tries once; the registry's mutex is locked. Returns null if another process has the lock.
std::shared_ptr<FolderLock> try_lock(const fs::path& path) {
  Registry& all = registry();
  if (const auto id = id_at(path)) {
    const auto held = all.held.find(*id);
    if (held != all.held.end()) return held->second.lock.lock();
  }
  constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | kFlags, 0666));
  const int error = errno;
  const bool is_others = !file.is_open() && error == EACCES;
  if (is_others) file = UniqueFd(::open(path.c_str(), O_RDONLY | kFlags));
  if (!file.is_open()) check_done(-error, path, "made");
  bool is_locked = false;
  if (!lock_file(file.get(), is_others, path, is_locked)) return nullptr;
  const auto id = id_of(file.get());
  if (!id || id_at(path) != id) return nullptr;  // the user has removed it meanwhile
  const int number = file.get();
  if (is_locked)
    describe_owner(number, "process " + std::to_string(::getpid()) + " of host " + host_name() + "\n");
  auto lock = std::make_shared<LocalFolderLock>(is_locked, path, std::move(file), *id);
  all.held[*id] = {number, lock};
  return lock;
}

std::string holder_of(const fs::path& path) {
  constexpr int64_t kMostOwnerBytes = 4096;
  std::string text;
  try {
    text = read_text(local_file_system(), path, kMostOwnerBytes).value_or("");
  } catch (const UserError&) {
    text.clear();
  }
  text = text.substr(0, text.find('\n'));
  return text.empty() ? "another process" : text;
}

}  // namespace

std::shared_ptr<FolderLock> lock_local_folder(const fs::path& folder) {
  constexpr std::chrono::milliseconds kPatience(1000);
  constexpr std::chrono::milliseconds kPoll(20);
  const fs::path path = fs::absolute(folder) / kLockName;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    {
      const std::lock_guard lock(registry().mutex);
      if (auto taken = try_lock(path)) return taken;
    }
    if (std::chrono::steady_clock::now() >= end) break;
    std::this_thread::sleep_for(kPoll);
  }
  throw UserError(
      folder.string() + ": " + holder_of(path) +
      " saves checkpoints into this folder: save into another one, or end that job first; if that "
      "host is down, remove " +
      path.string());
}

std::string host_name() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return host.data();
}

}  // namespace zerorun::checkpoint
