// Reads a file of torch.save (PyTorch 1.6 or later): a zip archive with a pickle and one entry per storage.
// Tensors are views of storages and are read in pieces. No code from the file is run (convert/pickle.h). Used
// by one thread. https://github.com/pytorch/pytorch/blob/v2.11.0/torch/serialization.py
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "convert/pickle.h"
#include "convert/zip_archive.h"

namespace zerorun::convert {

/// A view of a storage.
struct TorchTensor {
  std::string dtype;   // as spelled in safetensors: "F32"
  std::string entry;   // entry of the storage in the archive
  int64_t offset = 0;  // first element, counted from the start of the storage
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements
  int64_t numel = 0;
};

class TorchFile {
 public:
  /// Throws UserError naming the file if it is not from torch.save, is damaged, or is big-endian.
  TorchFile(checkpoint::FileSystem& files, const std::filesystem::path& path);

  const std::filesystem::path& path() const { return archive_.path(); }
  /// The object that was passed to torch.save.
  PickleValue root() const { return pickle_.root(); }

  /// Returns the tensor or parameter that `value` describes; absent if `value` is something else. Throws
  /// UserError if the tensor exceeds its storage, or has a dtype or layout that checkpoints do not support.
  /// `name` is the tensor's name in messages.
  std::optional<TorchTensor> tensor(const PickleValue& value, const std::string& name) const;

  /// Fills `into` with elements in memory order (by ascending address, whatever the tensor's strides),
  /// starting with element `begin` in this order. The first read from a storage also checks its CRC-32.
  void read(const TorchTensor& tensor, int64_t begin, std::span<std::byte> into);

 private:
  std::string where() const { return path().string() + ": "; }

  ZipArchive archive_;
  std::string prefix_;  // common prefix of the entries' names: "archive/"
  Pickle pickle_;
  std::set<std::string> verified_;
};

}  // namespace zerorun::convert
