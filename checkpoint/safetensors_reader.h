// Reads and validates safetensors files: one file, or a folder in Hugging Face's layout (sharded or not).
// Used by one thread. Uses at most kSafetensorsMemoryFactor times the size of the headers as memory.
//
// A safetensors file has the header's length in 8 bytes (little-endian), the header (a JSON object: tensor
// name -> dtype, shape, data_offsets), and the tensors' bytes, row-major and little-endian, without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun {

inline constexpr int64_t kSafetensorsMemoryFactor = 16;

struct TensorInfo {
  std::string dtype;  // as spelled in safetensors: "F32", "BF16", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // first byte, counted from the end of the header
  uint64_t end = 0;
  size_t file = 0;  // index into the reader's files
};

/// For messages: "F32 [64, 192]".
std::string to_string(const TensorInfo& info);
std::string to_string(const std::vector<int64_t>& shape);

class SafetensorsReader {
 public:
  /// `path` is a file or a folder. A folder has either model.safetensors, or model.safetensors.index.json and
  /// the files that it names. Reads and checks all headers. Throws UserError naming the file, and the tensor
  /// if one is invalid.
  explicit SafetensorsReader(const std::filesystem::path& path,
                             checkpoint::FileSystem& files = checkpoint::local_file_system());

  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  /// Returns the file that has the tensor, for messages.
  const std::filesystem::path& file_of(const TensorInfo& info) const { return files_.at(info.file).path(); }
  /// Read a tensor of tensors(). The first function reads all of its bytes. The second reads `into.size()`
  /// bytes, starting at the tensor's byte `begin`. Both throw UserError if the file cannot be read.
  std::vector<std::byte> read(const std::string& name) const;
  void read(const TensorInfo& info, uint64_t begin, std::span<std::byte> into) const;

 private:
  void add_file(checkpoint::FileSystem& files, const std::filesystem::path& path);
  void add_indexed_files(checkpoint::FileSystem& files, const std::filesystem::path& index);

  std::vector<checkpoint::OpenFile> files_;
  std::vector<uint64_t> data_starts_;  // by file
  std::map<std::string, TensorInfo> tensors_;
};

}  // namespace zerorun
