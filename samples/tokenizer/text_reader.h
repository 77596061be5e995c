// Reads a text file of any size in parts. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace zerorun {

/// Every function throws UserError naming the file.
class TextReader {
 public:
  /// `any_bytes`: the file need not be UTF-8. It must exist and not be empty.
  explicit TextReader(const std::filesystem::path& file, bool any_bytes = false);
  ~TextReader();
  TextReader(const TextReader&) = delete;
  TextReader& operator=(const TextReader&) = delete;

  /// The next part, of about a megabyte, which ends where words end (last_cut()); empty at the end of the
  /// file. Valid until the next call.
  std::string_view next();
  int64_t size() const { return size_; }

 private:
  void read_more();

  std::string name_;
  bool any_bytes_;
  int file_ = -1;
  int64_t size_ = 0;
  int64_t read_ = 0;  // bytes of the file
  std::string buffer_;
  size_t given_ = 0;  // bytes of the buffer, which the last call returned
};

}  // namespace zerorun
