// Wraps a file system and adds one fault: a chosen call fails or is delayed, or all writes are short.
#pragma once

#include <atomic>
#include <functional>
#include <utility>

#include "checkpoint/file_system.h"

namespace zerorun::testing {

struct Fault {
  int64_t call = -1;                     // index among the calls that modify files, except removals; -1: none
  int error = 0;                         // the errno with which the call fails; 0: the call succeeds
  bool is_short = false;                 // every write transfers 1000 bytes at most
  std::function<void()> meanwhile = {};  // runs before the call, to delay it
};

class FaultyFileSystem : public checkpoint::FileSystem {
 public:
  FaultyFileSystem(checkpoint::FileSystem& inner, Fault fault) : inner_(&inner), fault_(std::move(fault)) {}

  int64_t calls() const { return calls_; }

  int create(const std::filesystem::path& file, checkpoint::Caching caching) override {
    return fails() ? -fault_.error : inner_->create(file, caching);
  }
  int open(const std::filesystem::path& file) override { return inner_->open(file); }
  int create_nameless(const std::filesystem::path& folder) override {
    return fails() ? -fault_.error : inner_->create_nameless(folder);
  }
  int link_open(int file, const std::filesystem::path& name) override {
    return fails() ? -fault_.error : inner_->link_open(file, name);
  }
  int allocate(int file, int64_t bytes) override {
    return fails() ? -fault_.error : inner_->allocate(file, bytes);
  }
  bool has_descriptors() const override { return inner_->has_descriptors(); }
  void close(int file) override { inner_->close(file); }
  int64_t write(int file, std::span<const std::byte> bytes, int64_t offset) override {
    if (fails()) return -fault_.error;
    constexpr size_t kShort = 1000;
    return inner_->write(file, fault_.is_short && bytes.size() > kShort ? bytes.first(kShort) : bytes,
                         offset);
  }
  int64_t read(int file, std::span<std::byte> bytes, int64_t offset) override {
    return inner_->read(file, bytes, offset);
  }
  int64_t size(int file) override { return inner_->size(file); }
  int sync(int file) override { return fails() ? -fault_.error : inner_->sync(file); }
  int make_folder(const std::filesystem::path& folder) override {
    return fails() ? -fault_.error : inner_->make_folder(folder);
  }
  int sync_folder(const std::filesystem::path& folder) override {
    return fails() ? -fault_.error : inner_->sync_folder(folder);
  }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return fails() ? -fault_.error : inner_->rename(from, to);
  }
  int link(const std::filesystem::path& file, const std::filesystem::path& name) override {
    return fails() ? -fault_.error : inner_->link(file, name);
  }
  int exchange(const std::filesystem::path& one, const std::filesystem::path& other) override {
    return fails() ? -fault_.error : inner_->exchange(one, other);
  }
  int remove_file(const std::filesystem::path& file) override { return inner_->remove_file(file); }
  int remove_folder(const std::filesystem::path& folder) override { return inner_->remove_folder(folder); }
  std::optional<std::vector<std::string>> list(const std::filesystem::path& folder) override {
    return inner_->list(folder);
  }
  int open_folder(const std::filesystem::path& folder) override { return inner_->open_folder(folder); }
  std::optional<std::vector<std::string>> list_open(int folder) override { return inner_->list_open(folder); }
  int open_at(int folder, const std::string& name) override { return inner_->open_at(folder, name); }
  int remove_at(int folder, const std::string& name) override { return inner_->remove_at(folder, name); }
  std::optional<std::filesystem::path> link_target(const std::filesystem::path& path) override {
    return inner_->link_target(path);
  }
  std::optional<checkpoint::FileIdentity> identity(const std::filesystem::path& file) override {
    return inner_->identity(file);
  }
  std::shared_ptr<checkpoint::FolderLock> lock_folder(const std::filesystem::path& folder) override {
    return inner_->lock_folder(folder);
  }

 private:
  bool fails() {
    if (calls_++ != fault_.call) return false;
    if (fault_.meanwhile) fault_.meanwhile();
    return fault_.error != 0;
  }

  checkpoint::FileSystem* inner_;
  Fault fault_;
  std::atomic<int64_t> calls_ = 0;
};

}  // namespace zerorun::testing
