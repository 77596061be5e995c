#include "checkpoint/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/unique_fd.h"

namespace zerorun::checkpoint {
namespace fs = std::filesystem;
namespace {

int64_t result_of(int64_t result) {
  return result < 0 ? -errno : result;
}

class LocalFileSystem : public FileSystem {
 public:
  int create(const fs::path& file, Caching caching) override {
    constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
    if (caching == Caching::direct) {
      const int opened = ::open(file.c_str(), kFlags | O_DIRECT, 0666);
      if (opened >= 0 || errno != EINVAL) return static_cast<int>(result_of(opened));
      ::unlink(file.c_str());  // some file systems create the file before they refuse O_DIRECT
    }
    return static_cast<int>(result_of(::open(file.c_str(), kFlags, 0666)));
  }
  int open(const fs::path& file) override { return checked(UniqueFd(::open(file.c_str(), kReading))); }
  int create_nameless(const fs::path& folder) override {
    constexpr int kFlags = O_RDWR | O_TMPFILE | O_CLOEXEC;
    int opened = ::open(folder.c_str(), kFlags | O_DIRECT, 0666);
    if (opened < 0 && errno == EINVAL) opened = ::open(folder.c_str(), kFlags, 0666);
    if (opened >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return static_cast<int>(result_of(opened));
    std::string name = folder / ".zerorun-XXXXXX";
    const int named = static_cast<int>(result_of(::mkostemp(name.data(), O_CLOEXEC)));
    if (named >= 0) ::unlink(name.c_str());
    return named;
  }
  int link_open(int file, const fs::path& name) override {
    const std::string open_file = "/proc/self/fd/" + std::to_string(file);
    return static_cast<int>(
        result_of(::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW)));
  }
  int allocate(int file, int64_t bytes) override {
    int result = 0;
    do {
      result = static_cast<int>(result_of(::fallocate(file, 0, 0, bytes)));
    } while (result == -EINTR);
    if (result != -EOPNOTSUPP) return result;
    return static_cast<int>(result_of(::ftruncate(file, bytes)));
  }
  bool has_descriptors() const override { return true; }
  void close(int file) override { ::close(file); }
  int64_t write(int file, std::span<const std::byte> bytes, int64_t offset) override {
    const int64_t written = result_of(::pwrite(file, bytes.data(), bytes.size(), offset));
    if (written != -EINVAL || !stop_direct(file)) return written;
    return result_of(::pwrite(file, bytes.data(), bytes.size(), offset));
  }
  int64_t read(int file, std::span<std::byte> bytes, int64_t offset) override {
    const int64_t read = result_of(::pread(file, bytes.data(), bytes.size(), offset));
    if (read != -EINVAL || !stop_direct(file)) return read;
    return result_of(::pread(file, bytes.data(), bytes.size(), offset));
  }
  int64_t size(int file) override {
    struct stat status {};
    const int64_t result = result_of(::fstat(file, &status));
    return result < 0 ? result : status.st_size;
  }
  int sync(int file) override { return static_cast<int>(result_of(::fsync(file))); }

  int make_folder(const fs::path& folder) override {
    return static_cast<int>(result_of(::mkdir(folder.c_str(), 0777)));
  }
  int sync_folder(const fs::path& folder) override {
    const UniqueFd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return opened.is_open() ? sync(opened.get()) : -errno;
  }
  int rename(const fs::path& from, const fs::path& to) override {
    return static_cast<int>(result_of(::rename(from.c_str(), to.c_str())));
  }
  int link(const fs::path& file, const fs::path& name) override {
    return static_cast<int>(result_of(::link(file.c_str(), name.c_str())));
  }
  int exchange(const fs::path& one, const fs::path& other) override {
    return static_cast<int>(
        result_of(::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE)));
  }
  int remove_file(const fs::path& file) override {
    return static_cast<int>(result_of(::unlink(file.c_str())));
  }
  int remove_folder(const fs::path& folder) override {
    return static_cast<int>(result_of(::rmdir(folder.c_str())));
  }
  std::optional<std::vector<std::string>> list(const fs::path& folder) override {
    return names_in(UniqueFd(::open(folder.c_str(), kFolder)));
  }
  int open_folder(const fs::path& folder) override {
    return static_cast<int>(result_of(::open(folder.c_str(), kFolder | O_NOFOLLOW)));
  }
  std::optional<std::vector<std::string>> list_open(int folder) override {
    return names_in(UniqueFd(::openat(folder, ".", kFolder)));
  }
  int open_at(int folder, const std::string& name) override {
    return checked(UniqueFd(::openat(folder, name.c_str(), kReading)));
  }
  int remove_at(int folder, const std::string& name) override {
    return static_cast<int>(result_of(::unlinkat(folder, name.c_str(), 0)));
  }
  std::optional<fs::path> link_target(const fs::path& path) override {
    std::error_code error;
    if (!fs::is_symlink(path, error)) return std::nullopt;
    const fs::path folder = fs::absolute(path).parent_path();
    const fs::path named = folder / fs::read_symlink(path, error);
    const fs::path target = fs::weakly_canonical(named, error);
    return error ? named : target;
  }
  std::optional<FileIdentity> identity(const fs::path& file) override {
    struct stat status {};
    if (::lstat(file.c_str(), &status) != 0) return std::nullopt;
    constexpr int64_t kSecond = 1'000'000'000;
    return FileIdentity{.device = status.st_dev,
                        .node = status.st_ino,
                        .changed = status.st_mtim.tv_sec * kSecond + status.st_mtim.tv_nsec,
                        .bytes = status.st_size};
  }
  std::shared_ptr<FolderLock> lock_folder(const fs::path& folder) override {
    return lock_local_folder(folder);
  }

 private:
  static constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  // Without O_NONBLOCK, open() would wait until somebody opens a pipe for writing.
  static constexpr int kReading = O_RDONLY | O_NONBLOCK | O_CLOEXEC;

  // Returns the number of a regular file that was opened with kReading, else an error.
  static int checked(UniqueFd file) {
    struct stat status {};
    if (!file.is_open() || ::fstat(file.get(), &status) != 0) return -errno;
    if (S_ISDIR(status.st_mode)) return -EISDIR;
    if (!S_ISREG(status.st_mode)) return -kNotRegular;
    const int flags = ::fcntl(file.get(), F_GETFL);
    if (flags >= 0) ::fcntl(file.get(), F_SETFL, flags & ~O_NONBLOCK);
    return file.release();
  }

  static std::optional<std::vector<std::string>> names_in(UniqueFd folder) {
    if (!folder.is_open()) return std::nullopt;
    const std::unique_ptr<DIR, int (*)(DIR*)> opened(::fdopendir(folder.get()), ::closedir);
    if (!opened) return std::nullopt;
    folder.release();  // `opened` closes it
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(opened.get())) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    std::ranges::sort(names);
    return names;
  }

  // Clears the O_DIRECT flag of `file` for all later transfers. Returns whether the flag was set. Called when
  // a transfer has failed with EINVAL, because direct transfers must be of whole pages.
  static bool stop_direct(int file) {
    const int flags = ::fcntl(file, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0 && ::fcntl(file, F_SETFL, flags & ~O_DIRECT) == 0;
  }
};

const char* remedy_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return ": make room on that disk, or save somewhere else";
    case EACCES:
    case EPERM:
    case EROFS:
      return ": save where this user may write";
    default:
      return "";
  }
}

[[noreturn]] void fail(const fs::path& path, const std::string& what, int error) {
  const std::string reason = error == kNotRegular ? "it is no regular file" : std::strerror(error);
  throw UserError(path.string() + " cannot be " + what + ": " + reason + remedy_of(error));
}

// Repeats `transfer`, which may move fewer bytes than requested, until all bytes are moved.
template <typename Bytes, typename Transfer>
void transfer_all(Bytes bytes, int64_t offset, const fs::path& path, const char* what,
                  const Transfer& transfer) {
  while (!bytes.empty()) {
    const int64_t count = transfer(bytes, offset);
    if (count == -EINTR) continue;
    if (count < 0) fail(path, what, static_cast<int>(-count));
    if (count == 0) {
      throw UserError(path.string() + " cannot be " + what + ": it ends at byte " + std::to_string(offset) +
                      ", " + std::to_string(bytes.size()) + " bytes too early");
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
}

}  // namespace

FileSystem& local_file_system() {
  static LocalFileSystem files;
  return files;
}

void check_done(int result, const fs::path& path, const std::string& what) {
  if (result < 0) fail(path, what, -result);
}

OpenFile OpenFile::create(FileSystem& files, const fs::path& path, Caching caching) {
  const int file = files.create(path, caching);
  check_done(file, path, "made");
  return {files, path, file};
}

OpenFile OpenFile::open(FileSystem& files, const fs::path& path) {
  const int file = files.open(path);
  check_done(file, path, "opened");
  return {files, path, file};
}

OpenFile OpenFile::create_nameless(FileSystem& files, const fs::path& folder) {
  const int file = files.create_nameless(folder);
  check_done(file, folder, "given a file");
  return {files, folder, file};
}

OpenFile::~OpenFile() {
  if (file_ >= 0) files_->close(file_);
}

OpenFile::OpenFile(OpenFile&& other) noexcept
    : files_(other.files_),
      path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      is_linked_(other.is_linked_) {}

void OpenFile::write(std::span<const std::byte> bytes, int64_t offset) {
  transfer_all(bytes, offset, path_, "written",
               [this](auto rest, int64_t at) { return files_->write(file_, rest, at); });
}

void OpenFile::read(std::span<std::byte> bytes, int64_t offset) const {
  transfer_all(bytes, offset, path_, "read",
               [this](auto rest, int64_t at) { return files_->read(file_, rest, at); });
}

std::string OpenFile::text(int64_t most_bytes) const {
  const int64_t bytes = size();
  if (bytes > most_bytes) {
    throw UserError(path_.string() + " cannot be read: it has " + std::to_string(bytes) +
                    " bytes, expected at most " + std::to_string(most_bytes));
  }
  std::string text(static_cast<size_t>(bytes), '\0');
  read(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

int64_t OpenFile::size() const {
  const int64_t bytes = files_->size(file_);
  if (bytes < 0) fail(path_, "read", static_cast<int>(-bytes));
  return bytes;
}

void OpenFile::sync() {
  check_done(files_->sync(file_), path_, "synced");
}

bool OpenFile::link(const fs::path& name) {
  const bool links = files_->link_open(file_, name) == 0;
  is_linked_ = is_linked_ || links;
  return links;
}

void OpenFile::allocate(int64_t bytes) {
  check_done(files_->allocate(file_, bytes), path_, "given a file of " + std::to_string(bytes) + " bytes");
}

std::optional<std::string> read_text(FileSystem& files, const fs::path& path, int64_t most_bytes) {
  const int number = files.open(path);
  if (number == -ENOENT || number == -ENOTDIR) return std::nullopt;
  check_done(number, path, "opened");
  return OpenFile(files, path, number).text(most_bytes);
}

void write_text(FileSystem& files, const fs::path& path, const std::string& text) {
  OpenFile file = OpenFile::create(files, path);
  file.write(std::as_bytes(std::span(text)), 0);
  file.sync();
}

// Syncs the parent of each new folder, because only then is the new folder's name durable.
void make_folders(FileSystem& files, const fs::path& folder) {
  const fs::path above = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  int made = files.make_folder(folder);
  if (made == -ENOENT && folder.has_parent_path()) {
    make_folders(files, above);
    made = files.make_folder(folder);
  }
  if (made == -EEXIST) return;
  check_done(made, folder, "made");
  check_done(files.sync_folder(above), above, "synced");
}

}  // namespace zerorun::checkpoint
