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
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/unique_fd.h"
#include "checkpoint/file_system.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

using FileId = std::pair<dev_t, ino_t>;

class LocalFolderLock;

struct Held {
  int file;
  std::weak_ptr<LocalFolderLock> lock;
};

// The locks of this process. Never destroyed: locks may end after static objects.
struct Registry {
  std::mutex mutex;
  std::map<FileId, Held> held;
  std::set<fs::path> warned;  // folders without locks
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

class LocalFolderLock : public FolderLock {
 public:
  LocalFolderLock(fs::path path, UniqueFd file, FileId id)
      : FolderLock(true), path_(std::move(path)), file_(std::move(file)), id_(id) {}
  ~LocalFolderLock() override {
    if (!home_.is_current()) {
      file_.release();  // the fork has closed it
      return;
    }
    const std::lock_guard lock(registry().mutex);
    if (id_at(path_) == id_) ::unlink(path_.c_str());
    registry().held.erase(id_);
    file_.reset();
  }

 private:
  fs::path path_;
  UniqueFd file_;
  FileId id_;
  HomeProcess home_;
};

std::string own_description() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return "process " + std::to_string(::getpid()) + " of host " + host.data();
}

bool has_no_locks(int error) {
  return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL || error == EBADF;
}

// Tries once; the registry's mutex is locked. Returns null if another process has the lock, or is about to
// remove its file.
std::shared_ptr<FolderLock> try_lock(const fs::path& path) {
  Registry& all = registry();
  if (const auto id = id_at(path)) {
    const auto held = all.held.find(*id);
    if (held != all.held.end()) return held->second.lock.lock();
  }
  constexpr int kFlags = O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  UniqueFd file(::open(path.c_str(), O_RDWR | kFlags, 0666));
  const bool is_others = !file.is_open() && errno == EACCES && id_at(path);
  if (is_others) file = UniqueFd(::open(path.c_str(), O_RDONLY | kFlags));
  if (!file.is_open()) check_done(-errno, path, "made");
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return nullptr;
    if (!has_no_locks(errno)) check_done(-errno, path, "locked");
    ::unlink(path.c_str());
    if (all.warned.insert(path).second) {
      log_warning(path.parent_path().string() +
                  ": its file system has no locks, so let no other job save checkpoints there; leftovers of "
                  "jobs that were killed stay");
    }
    return std::make_shared<FolderLock>(false);
  }
  const auto id = id_of(file.get());
  if (!id || id_at(path) != id) return nullptr;
  if (is_others) {  // left by another user's job: make one that this process can write
    check_done(::unlink(path.c_str()) == 0 ? 0 : -errno, path, "removed");
    return nullptr;
  }
  const std::string text = own_description() + "\n";
  const bool written = ::ftruncate(file.get(), 0) == 0 &&
                       ::pwrite(file.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  if (!written) check_done(-errno, path, "written");
  const int number = file.get();
  auto lock = std::make_shared<LocalFolderLock>(path, std::move(file), *id);
  all.held[*id] = {number, lock};
  return lock;
}

std::string holder_of(const fs::path& path) {
  std::string text;
  try {
    text = read_text(local_file_system(), path).value_or("");
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
  throw UserError(folder.string() + ": " + holder_of(path) +
                  " saves checkpoints into this folder: save into another one, or end that job first");
}

}  // namespace zerorun
