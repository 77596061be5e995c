// Finds the files of a DeepSpeed checkpoint. Used by one thread.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun::convert {

struct DeepSpeedFolder {
  std::filesystem::path path;  // folder of the tag
  std::string tag;
  /// At stages 0 to 2 one file for the whole job; at stage 3 one file per rank.
  std::vector<std::filesystem::path> model_files;
  /// One file per rank. Empty at stage 0 and for universal checkpoints.
  std::vector<std::filesystem::path> optimizer_files;
  /// Universal checkpoints only: the folder of each parameter, by the parameter's name.
  std::map<std::string, std::filesystem::path> parameter_folders;
  bool is_universal = false;
};

/// `folder` is a tag's folder, or its parent folder with the file `latest` or `latest_universal`. Throws
/// UserError if the folder is not a DeepSpeed checkpoint, if a rank's file is missing, or if the checkpoint
/// was written with tensor, pipeline or expert parallelism.
DeepSpeedFolder find_deepspeed_files(checkpoint::FileSystem& files, const std::filesystem::path& folder);

}  // namespace zerorun::convert
