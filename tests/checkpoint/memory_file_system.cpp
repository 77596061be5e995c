#include "tests/checkpoint/memory_file_system.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace zerorun::testing {
using namespace checkpoint;
namespace fs = std::filesystem;
namespace {

using Kind = Operation::Kind;

constexpr int64_t kPage = 4096;

// Returns true if one of the operations after `index`, within the first `count`, syncs the same node.
bool is_safe(const std::vector<Operation>& operations, size_t count, size_t index) {
  for (size_t later = index + 1; later < count; ++later) {
    if (operations[later].kind == Kind::sync && operations[later].node == operations[index].node) return true;
  }
  return false;
}

}  // namespace

MemoryFileSystem MemoryFileSystem::after_crash(const std::vector<Operation>& operations, size_t count,
                                               const std::function<bool()>& keeps) {
  MemoryFileSystem left;
  for (size_t index = 0; index < count; ++index) {
    const Operation& operation = operations[index];
    if (operation.kind == Kind::link) {
      left.nodes_[operation.child].is_folder = operation.is_folder;
      left.next_node_ = std::max(left.next_node_, operation.child + 1);
    }
    const bool safe = is_safe(operations, count, index);
    if (operation.kind == Kind::write && !safe) {
      left.apply_pages(operation, keeps);
    } else if (safe || keeps()) {
      left.apply(operation);
    }
  }
  return left;
}

void MemoryFileSystem::apply(const Operation& operation) {
  auto& names = nodes_[operation.node].names;
  auto forget = [&](const std::string& name, int child) {
    if (const auto found = names.find(name); found != names.end() && found->second == child)
      names.erase(found);
  };
  switch (operation.kind) {
    case Kind::write:
      return put(operation.node, operation.bytes, operation.offset);
    case Kind::sync:
      return;
    case Kind::link:
      names[operation.name] = operation.child;
      return;
    case Kind::unlink:
      return forget(operation.name, operation.child);
    case Kind::rename:
      forget(operation.name, operation.child);
      names[operation.other] = operation.child;
      return;
    case Kind::exchange:
      names[operation.name] = operation.other_child;
      names[operation.other] = operation.child;
      return;
  }
}

void MemoryFileSystem::apply_pages(const Operation& write, const std::function<bool()>& keeps) {
  const auto length = static_cast<int64_t>(write.bytes.size());
  for (int64_t begin = 0; begin < length;) {
    const int64_t page_end = (write.offset + begin) / kPage * kPage + kPage - write.offset;
    const int64_t end = std::min(length, page_end);
    if (keeps()) {
      put(write.node, std::span(write.bytes).subspan(begin, end - begin), write.offset + begin);
    }
    begin = end;
  }
}

void MemoryFileSystem::put(int node, std::span<const std::byte> bytes, int64_t offset) {
  std::vector<std::byte>& all = nodes_[node].bytes;
  all.resize(std::max(all.size(), static_cast<size_t>(offset) + bytes.size()));
  std::ranges::copy(bytes, all.begin() + offset);
}

int MemoryFileSystem::record(Operation operation) {
  apply(operation);
  operations_.push_back(std::move(operation));
  return 0;
}

int MemoryFileSystem::find(const fs::path& path) const {
  int node = 0;
  for (const fs::path& part : path.relative_path()) {
    const Node& folder = nodes_.at(node);
    if (!folder.is_folder) return -ENOTDIR;
    const auto found = folder.names.find(part.string());
    if (found == folder.names.end()) return -ENOENT;
    node = found->second;
  }
  return node;
}

int MemoryFileSystem::add(const fs::path& path, bool is_folder) {
  const int folder = find(path.parent_path());
  if (folder < 0) return folder;
  if (find(path) >= 0) return -EEXIST;
  const int child = next_node_++;
  nodes_[child].is_folder = is_folder;
  record({.kind = Kind::link,
          .node = folder,
          .name = path.filename().string(),
          .child = child,
          .is_folder = is_folder});
  return child;
}

int MemoryFileSystem::create(const fs::path& file, Caching) {
  const std::lock_guard lock(*mutex_);
  return add(file, false);
}

int MemoryFileSystem::create_nameless(const fs::path& folder) {
  const std::lock_guard lock(*mutex_);
  if (find(folder) < 0) return -ENOENT;
  const int child = next_node_++;
  nodes_[child] = {};
  return child;
}

int MemoryFileSystem::link(const fs::path& file, const fs::path& name) {
  const std::lock_guard lock(*mutex_);
  const int child = find(file);
  return child < 0 ? child : link_open(child, name);
}

int MemoryFileSystem::link_open(int child, const fs::path& name) {
  const std::lock_guard lock(*mutex_);
  if (find(name) >= 0) return -EEXIST;
  return record({.kind = Kind::link,
                 .node = find(name.parent_path()),
                 .name = name.filename().string(),
                 .child = child});
}

int MemoryFileSystem::make_folder(const fs::path& folder) {
  const std::lock_guard lock(*mutex_);
  const int made = add(folder, true);
  return made < 0 ? made : 0;
}

int MemoryFileSystem::open(const fs::path& file) {
  const std::lock_guard lock(*mutex_);
  return find(file);
}

int64_t MemoryFileSystem::write(int file, std::span<const std::byte> bytes, int64_t offset) {
  const std::lock_guard lock(*mutex_);
  record({.kind = Kind::write, .node = file, .offset = offset, .bytes = {bytes.begin(), bytes.end()}});
  return static_cast<int64_t>(bytes.size());
}

int64_t MemoryFileSystem::read(int file, std::span<std::byte> bytes, int64_t offset) {
  const std::lock_guard lock(*mutex_);
  const std::vector<std::byte>& all = nodes_.at(file).bytes;
  const int64_t count =
      std::clamp<int64_t>(static_cast<int64_t>(all.size()) - offset, 0, static_cast<int64_t>(bytes.size()));
  std::copy_n(all.begin() + std::min<int64_t>(offset, static_cast<int64_t>(all.size())), count,
              bytes.begin());
  return count;
}

int64_t MemoryFileSystem::size(int file) {
  const std::lock_guard lock(*mutex_);
  return static_cast<int64_t>(nodes_.at(file).bytes.size());
}

int MemoryFileSystem::sync(int file) {
  const std::lock_guard lock(*mutex_);
  return record({.kind = Kind::sync, .node = file});
}

int MemoryFileSystem::sync_folder(const fs::path& folder) {
  const std::lock_guard lock(*mutex_);
  const int node = find(folder);
  return node < 0 ? node : sync(node);
}

int MemoryFileSystem::rename(const fs::path& from, const fs::path& to) {
  const std::lock_guard lock(*mutex_);
  const int child = find(from);
  if (child < 0) return child;
  if (const int there = find(to); there >= 0 && nodes_.at(there).is_folder) return -EEXIST;
  return record({.kind = Kind::rename,
                 .node = find(from.parent_path()),
                 .name = from.filename().string(),
                 .other = to.filename().string(),
                 .child = child});
}

int MemoryFileSystem::exchange(const fs::path& one, const fs::path& other) {
  const std::lock_guard lock(*mutex_);
  const int child = find(one);
  const int other_child = find(other);
  if (child < 0 || other_child < 0) return -ENOENT;
  return record({.kind = Kind::exchange,
                 .node = find(one.parent_path()),
                 .name = one.filename().string(),
                 .other = other.filename().string(),
                 .child = child,
                 .other_child = other_child});
}

int MemoryFileSystem::remove(int folder, const std::string& name, bool is_folder) {
  if (folder < 0) return folder;
  const auto found = nodes_.at(folder).names.find(name);
  if (found == nodes_.at(folder).names.end()) return -ENOENT;
  const Node& removed = nodes_.at(found->second);
  if (removed.is_folder != is_folder) return is_folder ? -ENOTDIR : -EISDIR;
  if (!removed.names.empty()) return -ENOTEMPTY;
  return record({.kind = Kind::unlink, .node = folder, .name = name, .child = found->second});
}

int MemoryFileSystem::remove_file(const fs::path& file) {
  const std::lock_guard lock(*mutex_);
  return remove(find(file.parent_path()), file.filename().string(), false);
}
int MemoryFileSystem::remove_folder(const fs::path& folder) {
  const std::lock_guard lock(*mutex_);
  return remove(find(folder.parent_path()), folder.filename().string(), true);
}
int MemoryFileSystem::remove_at(int folder, const std::string& name) {
  const std::lock_guard lock(*mutex_);
  return remove(folder, name, false);
}

std::optional<std::vector<std::string>> MemoryFileSystem::list(const fs::path& folder) {
  const std::lock_guard lock(*mutex_);
  const int node = find(folder);
  return node < 0 || !nodes_.at(node).is_folder ? std::nullopt : list_open(node);
}

std::optional<std::vector<std::string>> MemoryFileSystem::list_open(int folder) {
  const std::lock_guard lock(*mutex_);
  std::vector<std::string> names;
  for (const auto& [name, child] : nodes_.at(folder).names) names.push_back(name);
  return names;
}

int MemoryFileSystem::open_folder(const fs::path& folder) {
  const std::lock_guard lock(*mutex_);
  const int node = find(folder);
  return node < 0 || nodes_.at(node).is_folder ? node : -ENOTDIR;
}

int MemoryFileSystem::open_at(int folder, const std::string& name) {
  const std::lock_guard lock(*mutex_);
  const auto& names = nodes_.at(folder).names;
  const auto found = names.find(name);
  return found == names.end() ? -ENOENT : found->second;
}

std::optional<FileIdentity> MemoryFileSystem::identity(const fs::path& file) {
  const std::lock_guard lock(*mutex_);
  const int node = find(file);
  if (node < 0) return std::nullopt;
  return FileIdentity{.node = static_cast<uint64_t>(node), .bytes = size(node)};
}

}  // namespace zerorun::testing
