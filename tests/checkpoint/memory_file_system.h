// A file system in memory. It records its operations and computes which files may remain after a crash.
// Several threads may use it, but operations() only once they have ended.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun::testing {

/// One change, or a sync that makes earlier changes of the same node durable. Nodes (files and folders) are
/// numbered; the root folder is 0.
struct Operation {
  enum class Kind { write, sync, link, unlink, rename, exchange };
  Kind kind;
  int node = 0;  // write, sync: the file or folder; other kinds: the folder that contains `name`
  int64_t offset = 0;
  std::vector<std::byte> bytes = {};
  std::string name = {};   // link, unlink: the name; rename: the old name; exchange: the first name
  std::string other = {};  // rename: the new name; exchange: the other name
  int child = 0;           // the node of `name` (exchange: before the exchange)
  int other_child = 0;     // exchange: the node of `other` before the exchange
  bool is_folder = false;  // link: `child` is a folder
};

class MemoryFileSystem : public checkpoint::FileSystem {
 public:
  MemoryFileSystem() { nodes_[0].is_folder = true; }

  const std::vector<Operation>& operations() const { return operations_; }

  /// Returns a possible state after a crash that follows the first `count` of `operations`. `keeps` is called
  /// for each unsynced page of 4 KiB and each unsynced change of a name; it returns false to lose the change.
  static MemoryFileSystem after_crash(const std::vector<Operation>& operations, size_t count,
                                      const std::function<bool()>& keeps);

  int create(const std::filesystem::path& file, checkpoint::Caching caching) override;
  int open(const std::filesystem::path& file) override;
  int create_nameless(const std::filesystem::path& folder) override;
  int link_open(int file, const std::filesystem::path& name) override;
  /// Does nothing: no test reads the zeros with which a real file system would extend the file.
  int allocate(int /*file*/, int64_t /*bytes*/) override { return 0; }
  bool has_descriptors() const override { return false; }
  void close(int /*file*/) override {}
  int64_t write(int file, std::span<const std::byte> bytes, int64_t offset) override;
  int64_t read(int file, std::span<std::byte> bytes, int64_t offset) override;
  int64_t size(int file) override;
  int sync(int file) override;
  int make_folder(const std::filesystem::path& folder) override;
  int sync_folder(const std::filesystem::path& folder) override;
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  int link(const std::filesystem::path& file, const std::filesystem::path& name) override;
  int exchange(const std::filesystem::path& one, const std::filesystem::path& other) override;
  int remove_file(const std::filesystem::path& file) override;
  int remove_folder(const std::filesystem::path& folder) override;
  std::optional<std::vector<std::string>> list(const std::filesystem::path& folder) override;
  int open_folder(const std::filesystem::path& folder) override;
  std::optional<std::vector<std::string>> list_open(int folder) override;
  int open_at(int folder, const std::string& name) override;
  int remove_at(int folder, const std::string& name) override;
  std::optional<std::filesystem::path> link_target(const std::filesystem::path& /*path*/) override {
    return std::nullopt;
  }
  std::optional<checkpoint::FileIdentity> identity(const std::filesystem::path& file) override;
  /// No test of this file system has a second job.
  std::shared_ptr<checkpoint::FolderLock> lock_folder(const std::filesystem::path& /*folder*/) override {
    return std::make_shared<checkpoint::FolderLock>(true);
  }

 private:
  struct Node {
    bool is_folder = false;
    std::map<std::string, int> names;
    std::vector<std::byte> bytes;
  };

  /// Returns the number of the node at the path, or -errno.
  int find(const std::filesystem::path& path) const;
  int add(const std::filesystem::path& path, bool is_folder);
  int remove(int folder, const std::string& name, bool is_folder);
  /// Applies the operation to the nodes, even if a crash has lost earlier operations.
  void apply(const Operation& operation);
  void apply_pages(const Operation& write, const std::function<bool()>& keeps);
  void put(int node, std::span<const std::byte> bytes, int64_t offset);
  int record(Operation operation);

  std::shared_ptr<std::recursive_mutex> mutex_ = std::make_shared<std::recursive_mutex>();
  std::map<int, Node> nodes_;
  int next_node_ = 1;
  std::vector<Operation> operations_;
};

}  // namespace zerorun::testing
