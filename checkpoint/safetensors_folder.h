// Writes a folder of safetensors files as Hugging Face lays them out: model.safetensors, or shards
// model-00001-of-00003.safetensors with model.safetensors.index.json. Tensors are written as a stream, in
// order, so that memory does not grow with them. Used by one thread.
// https://huggingface.co/docs/safetensors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun {

struct TensorToStore {
  std::string name;
  std::string dtype;  // as safetensors spells it: "F32"
  std::vector<int64_t> shape;
  int64_t bytes() const;
};

class SafetensorsFolder {
 public:
  /// A shard gets tensors up to `max_shard_bytes` of data, and at least one. `stem`: "model". `files` must
  /// outlive it. Throws UserError naming the file.
  SafetensorsFolder(FileSystem& files, std::filesystem::path folder, std::vector<TensorToStore> tensors,
                    int64_t max_shard_bytes, std::string stem = "model");
  /// Removes what was written if finish() was not called.
  ~SafetensorsFolder();
  SafetensorsFolder(const SafetensorsFolder&) = delete;
  SafetensorsFolder& operator=(const SafetensorsFolder&) = delete;

  /// Appends bytes of the tensors, row-major, one tensor after the other.
  void write(std::span<const std::byte> bytes);
  /// Once all bytes are written: syncs the files and gives them their names; removes files of an earlier
  /// export under the same stem. Returns the files' names.
  std::vector<std::string> finish();

 private:
  struct Shard {
    std::string name;
    size_t first = 0;  // its tensors
    size_t end = 0;
    int64_t bytes = 0;
  };

  std::filesystem::path partial(const std::string& name) const { return folder_ / ("." + name + ".partial"); }
  void plan_shards(int64_t max_shard_bytes);
  void begin_shard();
  void end_shard();
  void write_index() const;
  void remove_earlier_export() const;

  FileSystem* files_;
  std::filesystem::path folder_;
  std::string stem_;
  std::vector<TensorToStore> tensors_;
  std::vector<Shard> shards_;
  size_t current_ = 0;  // shard
  std::optional<OpenFile> file_;
  int64_t header_bytes_ = 0;
  int64_t written_ = 0;  // data of the current shard
  bool finished_ = false;
};

}  // namespace zerorun
