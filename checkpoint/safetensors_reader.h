// Reads tensors of safetensors files, strictly: one file, or a folder as Hugging Face lays it out (sharded or
// not). Used by one thread. Memory: at most kSafetensorsMemoryFactor x the headers.
//
// The format: 8 bytes with the header's length (little-endian), the header (a JSON object: tensor name ->
// dtype, shape, data_offsets), then the tensors' bytes, row-major and little-endian, without holes.
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
  std::string dtype;  // as the format spells it: "F32", "BF16", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the end of the header
  uint64_t end = 0;
  size_t file = 0;  // index in the reader's files
};

/// "F32 [64, 192]", for messages.
std::string to_string(const TensorInfo& info);
std::string to_string(const std::vector<int64_t>& shape);

class SafetensorsReader {
 public:
  /// `path`: a file, or a folder with model.safetensors or with model.safetensors.index.json and the files
  /// that it names. Reads and checks all headers. Throws UserError naming the file and, if one is at fault,
  /// the tensor.
  explicit SafetensorsReader(const std::filesystem::path& path, FileSystem& files = local_file_system());

  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  /// The file that has the tensor, for messages.
  const std::filesystem::path& file_of(const TensorInfo& info) const { return files_.at(info.file).path(); }
  /// Read a tensor of tensors(): all of its bytes, or as many as fit `into`, from its byte `begin` on. Throw
  /// UserError if the file cannot be read.
  std::vector<std::byte> read(const std::string& name) const;
  void read(const TensorInfo& info, uint64_t begin, std::span<std::byte> into) const;

 private:
  void add_file(FileSystem& files, const std::filesystem::path& path);
  void add_indexed_files(FileSystem& files, const std::filesystem::path& index);

  std::vector<OpenFile> files_;
  std::vector<uint64_t> data_starts_;  // by file
  std::map<std::string, TensorInfo> tensors_;
};

}  // namespace zerorun
