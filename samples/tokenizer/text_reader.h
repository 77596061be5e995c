// Reads a text file of any size in parts. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace samples {

/// Every function throws UserError naming the file.
class TextReader {
 public:
  /// `file` must exist and not be empty. `any_bytes`: the file need not be UTF-8.
  explicit TextReader(const std::filesystem::path& file, bool any_bytes = false);
  ~TextReader();
  TextReader(const TextReader&) = delete;
  TextReader& operator=(const TextReader&) = delete;

  /// Returns the next part of the file, about 1 MiB, or an empty part at the file's end. A part ends between
  /// words (last_cut()); with `any_bytes` it may end anywhere. The result is valid until the next call.
  std::string_view next();
  int64_t size() const { return size_; }

 private:
  void read_more();

  std::string name_;
  bool any_bytes_;
  int file_ = -1;
  int64_t size_ = 0;
  int64_t read_ = 0;  // bytes read from the file so far
  std::string buffer_;
  size_t given_ = 0;  // bytes at the start of buffer_ that the last next() returned
};

}  // namespace samples
