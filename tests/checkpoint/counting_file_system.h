// A file system that counts what is read of files of slices.
#pragma once

#include <map>
#include <string>

#include "tests/checkpoint/faulty_file_system.h"

namespace zerorun::testing {

class CountingFileSystem : public FaultyFileSystem {
 public:
  CountingFileSystem() : FaultyFileSystem(checkpoint::local_file_system(), {}) {}
  int open(const std::filesystem::path& file) override {
    const int opened = FaultyFileSystem::open(file);
    if (file.extension() == ".safetensors") data_files_[opened] = file.filename();
    return opened;
  }
  void close(int file) override {
    data_files_.erase(file);
    FaultyFileSystem::close(file);
  }
  int64_t read(int file, std::span<std::byte> bytes, int64_t offset) override {
    const int64_t count = FaultyFileSystem::read(file, bytes, offset);
    const auto found = data_files_.find(file);
    if (found != data_files_.end() && count > 0) by_file_[found->second] += count;
    return count;
  }
  /// By file name.
  const std::map<std::string, int64_t>& bytes_by_file() const { return by_file_; }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& [name, bytes] : by_file_) sum += bytes;
    return sum;
  }

 private:
  std::map<int, std::string> data_files_;
  std::map<std::string, int64_t> by_file_;
};

}  // namespace zerorun::testing
