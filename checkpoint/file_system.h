// All that checkpoints ask of the operating system, as one small interface: tests put errors, short counts
// and death behind it. Any thread; a file is written by one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace zerorun {

enum class Caching {
  page_cache,
  /// Around the page cache, where the file system can: whole pages, from memory that begins at one.
  direct,
};
inline constexpr int64_t kPageBytes = 4096;

/// As the system calls have it, with -errno in place of -1 and errno. Folders are named by their paths; a
/// name is on the disk for good once its folder is synced, a file's bytes once the file is.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// Makes a file for reading and writing, which must not exist. Returns its number.
  virtual int create(const std::filesystem::path& file, Caching caching) = 0;
  virtual int open(const std::filesystem::path& file) = 0;
  /// Makes a file without a name on the folder's file system, for reading and writing around the page cache
  /// where that can be done. It goes when it is closed, unless link_open() has given it a name.
  virtual int create_nameless(const std::filesystem::path& folder) = 0;
  /// Gives an open file a name, on the same file system.
  virtual int link_open(int file, const std::filesystem::path& name) = 0;
  /// Gives it so many bytes, which are 0 where nothing has been written, and reserves room for them where the
  /// file system can.
  virtual int allocate(int file, int64_t bytes) = 0;
  /// Whether its numbers of files are the kernel's.
  virtual bool has_descriptors() const = 0;
  virtual void close(int file) = 0;
  /// Bytes that were written or read: maybe fewer than asked for; 0 at a file's end.
  virtual int64_t write(int file, std::span<const std::byte> bytes, int64_t offset) = 0;
  virtual int64_t read(int file, std::span<std::byte> bytes, int64_t offset) = 0;
  virtual int64_t size(int file) = 0;
  virtual int sync(int file) = 0;

  virtual int make_folder(const std::filesystem::path& folder) = 0;
  virtual int sync_folder(const std::filesystem::path& folder) = 0;
  /// Replaces a file of the new name.
  virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// Another name for a file, on the same file system.
  virtual int link(const std::filesystem::path& file, const std::filesystem::path& name) = 0;
  /// The two change places, at once.
  virtual int exchange(const std::filesystem::path& one, const std::filesystem::path& other) = 0;
  virtual int remove_file(const std::filesystem::path& file) = 0;
  virtual int remove_folder(const std::filesystem::path& folder) = 0;  // an empty one
  /// Names in the folder, sorted; absent where it cannot be read.
  virtual std::optional<std::vector<std::string>> list(const std::filesystem::path& folder) = 0;
};

/// This machine's.
FileSystem& local_file_system();

/// A file that is open. Throws UserError naming it, what was tried and the system's reason.
class OpenFile {
 public:
  static OpenFile create(FileSystem& files, const std::filesystem::path& path,
                         Caching caching = Caching::page_cache);
  static OpenFile open(FileSystem& files, const std::filesystem::path& path);
  static OpenFile create_nameless(FileSystem& files, const std::filesystem::path& folder);
  ~OpenFile();
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&&) = delete;

  /// All of `bytes`.
  void write(std::span<const std::byte> bytes, int64_t offset);
  void read(std::span<std::byte> bytes, int64_t offset) const;
  int64_t size() const;
  void sync();
  void allocate(int64_t bytes);
  /// Whether it has that name too now: not on every file system.
  bool link(const std::filesystem::path& name);
  bool is_linked() const { return is_linked_; }                // link() has given it a name
  const std::filesystem::path& path() const { return path_; }  // of a nameless one: its folder
  int number() const { return file_; }                         // as the file system has it

 private:
  OpenFile(FileSystem& files, std::filesystem::path path, int file)
      : files_(&files), path_(std::move(path)), file_(file) {}

  FileSystem* files_;
  std::filesystem::path path_;
  int file_;  // -1: moved away
  bool is_linked_ = false;
};

/// What the calls on names return, as OpenFile's errors. `what`: "renamed to x".
void check_done(int result, const std::filesystem::path& path, const std::string& what);

/// The file's text; absent where there is no such file.
std::optional<std::string> read_text(FileSystem& files, const std::filesystem::path& path);
/// Makes `path`, which must not exist, and syncs it.
void write_text(FileSystem& files, const std::filesystem::path& path, const std::string& text);
/// Removes a folder with the files in it, where it is there.
void remove_flat_folder(FileSystem& files, const std::filesystem::path& folder);

}  // namespace zerorun
