// Files of a checkpoint in memory files (memfd), one behind the other, as a FileSystem: so what writes,
// verifies and reads checkpoints does the same with generations that are held in memory. Folders mean
// nothing: a file is known by its name. Files of other hosts are read from their keepers, and list() leaves
// them out, as of folders that hosts do not share. One thread writes; any threads may read.
#pragma once

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/held_client.h"
#include "checkpoint/file_system.h"

namespace zerorun::checkpoint {

class HeldFiles final : public FileSystem {
 public:
  /// Where a file lies.
  struct Place {
    HeldSlot slot = {};  // neither on this host nor with a keeper: in `content` of the file
    int64_t offset = 0;
    int64_t bytes = 0;
  };

  /// Of files that are there already.
  HeldFiles() = default;
  /// Files are created in this memory file, from `offset` on.
  HeldFiles(int descriptor, int64_t offset) : descriptor_(descriptor), end_(offset) {}

  void add(const std::string& name, const Place& place);
  /// Adds a file that is in this memory file already. The next one is created behind it.
  void keep(const std::string& name, const Place& place);
  /// Adds a file with this content.
  void add(const std::string& name, std::string content);
  std::map<std::string, Place> places() const;
  int64_t end() const { return end_; }  // of the last file that was created

  int create(const std::filesystem::path& file, Caching caching) override;
  int open(const std::filesystem::path& file) override;
  int64_t write(int file, std::span<const std::byte> bytes, int64_t offset) override;
  /// Throws CommError for a file of another host whose keeper does not answer.
  int64_t read(int file, std::span<std::byte> bytes, int64_t offset) override;
  int64_t size(int file) override;
  int sync(int /*file*/) override { return 0; }
  bool has_descriptors() const override { return false; }
  void close(int /*file*/) override {}
  std::optional<std::vector<std::string>> list(const std::filesystem::path& folder) override;

  // Not for files in memory: these fail.
  using Path = std::filesystem::path;
  int create_nameless(const Path& /*folder*/) override { return -ENOTSUP; }
  int link_open(int /*file*/, const Path& /*name*/) override { return -ENOTSUP; }
  int allocate(int /*file*/, int64_t /*bytes*/) override { return -ENOTSUP; }
  int make_folder(const Path& /*folder*/) override { return -ENOTSUP; }
  int sync_folder(const Path& /*folder*/) override { return -ENOTSUP; }
  int rename(const Path& /*from*/, const Path& /*to*/) override { return -ENOTSUP; }
  int link(const Path& /*file*/, const Path& /*name*/) override { return -ENOTSUP; }
  int exchange(const Path& /*one*/, const Path& /*other*/) override { return -ENOTSUP; }
  int remove_file(const Path& /*file*/) override { return -ENOTSUP; }
  int remove_folder(const Path& /*folder*/) override { return -ENOTSUP; }
  int open_folder(const Path& /*folder*/) override { return -ENOTSUP; }
  std::optional<std::vector<std::string>> list_open(int /*folder*/) override { return std::nullopt; }
  int open_at(int /*folder*/, const std::string& /*name*/) override { return -ENOTSUP; }
  int remove_at(int /*folder*/, const std::string& /*name*/) override { return -ENOTSUP; }
  std::optional<Path> link_target(const Path& /*path*/) override { return std::nullopt; }
  std::optional<FileIdentity> identity(const Path& /*file*/) override { return std::nullopt; }
  std::shared_ptr<FolderLock> lock_folder(const Path& /*folder*/) override { return nullptr; }

 private:
  struct Entry {
    std::string name;
    Place place;
    std::string content;  // if the place has no slot
  };

  int find(const std::string& name) const;

  int descriptor_ = -1;
  int64_t end_ = 0;
  std::vector<Entry> files_;  // by file number
};

}  // namespace zerorun::checkpoint
