// A file system in memory that records its operations, and computes what may remain of them after a crash.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun::testing {

/// One change, or a sync that makes earlier changes durable. Files and folders are numbered; the root is 0.
struct Operation {
  enum class Kind { write, sync, link, unlink, rename, exchange };
  Kind kind;
  int node = 0;  // the file (or folder) that is written or synced; for other kinds: the folder
  int64_t offset = 0;
  std::vector<std::byte> bytes = {};
  std::string name = {};   // link, unlink: the name; rename: the old one
  std::string other = {};  // rename: the new name; exchange: the other name
  int child = 0;           // the node of `name`; exchange: its node before the exchange
  int other_child = 0;     // exchange: the node of `other` before it
  bool is_folder = false;  // link
};

class MemoryFileSystem : public FileSystem {
 public:
  MemoryFileSystem() { nodes_[0].is_folder = true; }

  const std::vector<Operation>& operations() const { return operations_; }

  /// A possible state after a crash that follows the first `count` of `operations`: `keeps` decides for each
  /// unsynced page of 4 KiB and each unsynced name whether it is kept or lost.
  static MemoryFileSystem after_crash(const std::vector<Operation>& operations, size_t count,
                                      const std::function<bool()>& keeps);

  int create(const std::filesystem::path& file, Caching caching) override;
  int open(const std::filesystem::path& file) override;
  int create_nameless(const std::filesystem::path& folder) override;
  int link_open(int file, const std::filesystem::path& name) override;
  int allocate(int /*file*/, int64_t /*bytes*/) override { return 0; }  // reads do not rely on the zeros
  bool has_descriptors() const override { return false; }
  void close(int /*file*/) override {}
  int64_t write(int file, std::span<const std::byte> bytes, int64_t offset) override;
  int64_t read(int file, std::span<std::byte> bytes, int64_t offset) override;
  int64_t size(int file) override { return static_cast<int64_t>(nodes_.at(file).bytes.size()); }
  int sync(int file) override;
  int make_folder(const std::filesystem::path& folder) override;
  int sync_folder(const std::filesystem::path& folder) override;
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  int link(const std::filesystem::path& file, const std::filesystem::path& name) override;
  int exchange(const std::filesystem::path& one, const std::filesystem::path& other) override;
  int remove_file(const std::filesystem::path& file) override;
  int remove_folder(const std::filesystem::path& folder) override;
  std::optional<std::vector<std::string>> list(const std::filesystem::path& folder) override;

 private:
  struct Node {
    bool is_folder = false;
    std::map<std::string, int> names;
    std::vector<std::byte> bytes;
  };

  /// The node at the path, or -errno.
  int find(const std::filesystem::path& path) const;
  int add(const std::filesystem::path& path, bool is_folder);
  int remove(const std::filesystem::path& path, bool is_folder);
  /// Applies it to the nodes, even if a crash has lost operations before it.
  void apply(const Operation& operation);
  void apply_pages(const Operation& write, const std::function<bool()>& keeps);
  void put(int node, std::span<const std::byte> bytes, int64_t offset);
  int record(Operation operation);

  std::map<int, Node> nodes_;
  int next_node_ = 1;
  std::vector<Operation> operations_;
};

}  // namespace zerorun::testing
