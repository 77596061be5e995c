// Writes a folder of safetensors files in Hugging Face's layout: model.safetensors, or shards such as
// model-00001-of-00003.safetensors with model.safetensors.index.json. Tensors are streamed in order, so
// memory use does not grow with the model. Used by one thread. https://huggingface.co/docs/safetensors
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

/// The start of a file with these tensors, in this order and without gaps: the length of the header, then the
/// header, padded with spaces so that the data starts at a multiple of 8 bytes.
std::string safetensors_header(std::span<const TensorToStore> tensors);

/// Which files that no SafetensorsFolder has written may be replaced.
enum class Replaceable {
  none,
  named,  // those whose names are written
};

class SafetensorsFolder {
 public:
  /// Each shard has at most `max_shard_bytes` bytes of data, or a single larger tensor. The names of the
  /// files begin with `stem`. `files` must outlive this object. Throws UserError naming the file, also if the
  /// folder has a file of another program (its metadata lack "writer": "zerorun") that is not `replaceable`
  /// and has a name that a SafetensorsFolder gives: STEM.safetensors, a shard's, or the index's.
  SafetensorsFolder(checkpoint::FileSystem& files, std::filesystem::path folder,
                    std::vector<TensorToStore> tensors, int64_t max_shard_bytes, std::string stem = "model",
                    Replaceable replaceable = Replaceable::named);
  /// Removes files that finish() has not renamed to their final names.
  ~SafetensorsFolder();
  SafetensorsFolder(const SafetensorsFolder&) = delete;
  SafetensorsFolder& operator=(const SafetensorsFolder&) = delete;

  /// Appends bytes of the tensors. The tensors are written one after the other, each in row-major order.
  void write(std::span<const std::byte> bytes);
  /// Call it when all bytes are written. Syncs the files, renames them to their final names, and removes
  /// other files that an earlier SafetensorsFolder with the same stem has written. Returns the names of the
  /// files.
  std::vector<std::string> finish();

 private:
  struct Shard {
    std::string name;
    size_t first = 0;  // the shard has tensors `first` to `end` - 1
    size_t end = 0;
    int64_t bytes = 0;
  };

  std::filesystem::path partial(const std::string& name) const { return folder_ / ("." + name + ".partial"); }
  bool is_written(const std::string& name) const;
  void plan_shards(int64_t max_shard_bytes);
  void refuse_others(Replaceable replaceable) const;
  void begin_shard();
  void end_shard();
  void write_index() const;
  void remove_earlier_export() const;

  checkpoint::FileSystem* files_;
  std::filesystem::path folder_;
  std::string stem_;
  std::vector<TensorToStore> tensors_;
  std::vector<Shard> shards_;
  size_t current_ = 0;  // index of the current shard
  std::optional<checkpoint::OpenFile> file_;
  int64_t header_bytes_ = 0;
  int64_t written_ = 0;  // bytes of data written to the current shard
  bool finished_ = false;
};

}  // namespace zerorun
