// The operating system's file operations that checkpoints use, as one small interface, so that tests can
// inject errors, short counts and crashes. Any thread, but only one thread at a time may write to a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/folder_lock.h"

namespace zerorun::checkpoint {

/// Tells a file from every other one, also from one that has replaced it under the same name.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t node = 0;
  int64_t changed = 0;  // time of the last write, in ns
  int64_t bytes = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

enum class Caching {
  page_cache,
  /// O_DIRECT if the file system supports it. Transfers must then be whole pages from page-aligned memory.
  direct,
};
inline constexpr int64_t kPageBytes = 4096;

/// What open() and open_at() return, negated, for a file that is no regular one, such as a pipe. No errno.
inline constexpr int kNotRegular = 1'000'000;

/// The functions behave like the system calls of the same names, but return -errno on failure. `int file` is
/// the number of an open file, which create(), open() or create_nameless() returned. A name is durable once
/// its folder is synced, and a file's bytes are durable once the file is synced.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// Creates `file`, which must not exist, for reading and writing. Returns its file number.
  virtual int create(const std::filesystem::path& file, Caching caching) = 0;
  /// Opens a regular file for reading. Does not wait, as the system's open() of a pipe would.
  virtual int open(const std::filesystem::path& file) = 0;
  /// Creates a file without a name on the folder's file system, for reading and writing, with O_DIRECT if the
  /// file system supports it. close() deletes the file, unless link_open() has given it a name.
  virtual int create_nameless(const std::filesystem::path& folder) = 0;
  /// Gives an open file the name `name`, which must be on the same file system.
  virtual int link_open(int file, const std::filesystem::path& name) = 0;
  /// Makes the file `bytes` bytes long, filled with zeros where nothing was written. Reserves disk space for
  /// all bytes if the file system supports that.
  virtual int allocate(int file, int64_t bytes) = 0;
  /// Whether file numbers are file descriptors of the kernel.
  virtual bool has_descriptors() const = 0;
  virtual void close(int file) = 0;
  /// Return the number of bytes written or read, possibly fewer than requested; 0 at the end of the file.
  virtual int64_t write(int file, std::span<const std::byte> bytes, int64_t offset) = 0;
  virtual int64_t read(int file, std::span<std::byte> bytes, int64_t offset) = 0;
  virtual int64_t size(int file) = 0;
  virtual int sync(int file) = 0;

  virtual int make_folder(const std::filesystem::path& folder) = 0;
  virtual int sync_folder(const std::filesystem::path& folder) = 0;
  /// Renames `from` to `to`, and replaces `to` if it exists.
  virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// Gives `file` a second name on the same file system (hard link).
  virtual int link(const std::filesystem::path& file, const std::filesystem::path& name) = 0;
  /// Exchanges two files or folders atomically.
  virtual int exchange(const std::filesystem::path& one, const std::filesystem::path& other) = 0;
  virtual int remove_file(const std::filesystem::path& file) = 0;
  virtual int remove_folder(const std::filesystem::path& folder) = 0;  // the folder must be empty
  /// Returns the names in the folder, sorted; absent if the folder cannot be read.
  virtual std::optional<std::vector<std::string>> list(const std::filesystem::path& folder) = 0;

  // For removals, which must follow no symbolic link.

  /// Opens a folder; fails if `folder` is a symbolic link. To be closed by close().
  virtual int open_folder(const std::filesystem::path& folder) = 0;
  virtual std::optional<std::vector<std::string>> list_open(int folder) = 0;
  /// As open(), for a file in an open folder.
  virtual int open_at(int folder, const std::string& name) = 0;
  /// Removes a file or a link, but no folder.
  virtual int remove_at(int folder, const std::string& name) = 0;
  /// Returns what a symbolic link names, as an absolute path; absent if `path` is no link.
  virtual std::optional<std::filesystem::path> link_target(const std::filesystem::path& path) = 0;
  virtual std::optional<FileIdentity> identity(const std::filesystem::path& file) = 0;

  /// As lock_local_folder().
  virtual std::shared_ptr<FolderLock> lock_folder(const std::filesystem::path& folder) = 0;
};

/// The file system of this machine.
FileSystem& local_file_system();

/// The longest manifest or index that is read. A longer file is damaged, and might fill the memory: a sparse
/// one can have any size.
inline constexpr int64_t kMostTextBytes = int64_t{1} << 30;

/// An open file. Throws UserError naming the file, the failed operation and the system's reason.
class OpenFile {
 public:
  static OpenFile create(FileSystem& files, const std::filesystem::path& path,
                         Caching caching = Caching::page_cache);
  static OpenFile open(FileSystem& files, const std::filesystem::path& path);
  /// Takes over an open file. `path` is for errors.
  OpenFile(FileSystem& files, std::filesystem::path path, int file)
      : files_(&files), path_(std::move(path)), file_(file) {}
  static OpenFile create_nameless(FileSystem& files, const std::filesystem::path& folder);
  ~OpenFile();
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&&) = delete;

  /// Writes or reads all of `bytes`, or throws.
  void write(std::span<const std::byte> bytes, int64_t offset);
  void read(std::span<std::byte> bytes, int64_t offset) const;
  /// Returns the content of the whole file. Throws if it has more than `most_bytes`.
  std::string text(int64_t most_bytes = kMostTextBytes) const;
  int64_t size() const;
  void sync();
  void allocate(int64_t bytes);
  /// Gives the file this name. Returns false if the file system does not support that.
  bool link(const std::filesystem::path& name);
  bool is_linked() const { return is_linked_; }                // whether link() has given the file a name
  const std::filesystem::path& path() const { return path_; }  // for a nameless file: its folder
  int number() const { return file_; }                         // file number in the FileSystem

 private:
  FileSystem* files_;
  std::filesystem::path path_;
  int file_;  // -1 after a move
  bool is_linked_ = false;
};

/// Throws UserError, as OpenFile does, if `result` is an error that a FileSystem call on `path` returned.
/// `what` names the operation, such as "removed".
void check_done(int result, const std::filesystem::path& path, const std::string& what);

/// Returns the file's text; absent if the file does not exist. Throws UserError if it has more than
/// `most_bytes`.
std::optional<std::string> read_text(FileSystem& files, const std::filesystem::path& path,
                                     int64_t most_bytes = kMostTextBytes);
/// Creates the file `path`, which must not exist, with the content `text`, and syncs the file.
void write_text(FileSystem& files, const std::filesystem::path& path, const std::string& text);
/// Creates `folder` and its missing parents. When it returns, their names are synced, so no crash can undo
/// this.
void make_folders(FileSystem& files, const std::filesystem::path& folder);

}  // namespace zerorun::checkpoint
