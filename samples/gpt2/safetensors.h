// Reads safetensors files strictly and writes them atomically. No LibTorch. A reader is used by one thread.
//
// The format: 8 bytes with the header's length (little-endian), the header (a JSON object: tensor name ->
// dtype, shape, data_offsets), then the tensors' bytes, row-major and little-endian, without holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace zerorun {

struct TensorInfo {
  std::string dtype;  // as the format spells it: "F32", "BF16", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the end of the header
  uint64_t end = 0;
};

/// "F32 [64, 192]", for messages.
std::string to_string(const TensorInfo& info);
std::string to_string(const std::vector<int64_t>& shape);

class SafetensorsReader {
 public:
  /// Reads and checks the header. Throws UserError naming the file and, where there is one, the tensor.
  explicit SafetensorsReader(std::filesystem::path file);

  const std::filesystem::path& file() const { return file_; }
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  /// The bytes of a tensor that is in tensors(). Throws UserError when the file cannot be read.
  std::vector<std::byte> read(const std::string& name);

 private:
  std::filesystem::path file_;
  std::ifstream stream_;
  uint64_t data_start_ = 0;
  std::map<std::string, TensorInfo> tensors_;
};

struct TensorToWrite {
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

/// Writes a temporary file beside `file` and renames it, so that `file` is complete at any time. Throws
/// UserError.
void write_safetensors(const std::filesystem::path& file,
                       const std::map<std::string, TensorToWrite>& tensors);

}  // namespace zerorun
