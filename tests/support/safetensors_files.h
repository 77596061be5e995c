// Writes safetensors files for tests.
#pragma once

#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors_folder.h"

namespace zerorun::testing {

struct TensorToWrite {
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

inline void write_safetensors(const std::filesystem::path& file,
                              const std::map<std::string, TensorToWrite>& tensors) {
  std::vector<TensorToStore> stored;
  for (const auto& [name, tensor] : tensors) stored.push_back({name, tensor.dtype, tensor.shape});
  SafetensorsFolder folder(checkpoint::local_file_system(), file.parent_path(), stored,
                           std::numeric_limits<int64_t>::max(), file.stem().string());
  for (const auto& [name, tensor] : tensors) folder.write(tensor.bytes);
  folder.finish();
}

}  // namespace zerorun::testing
