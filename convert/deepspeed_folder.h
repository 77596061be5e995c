// Finds the files that a DeepSpeed checkpoint consists of. Used by one thread.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun {

struct DeepSpeedFolder {
  std::filesystem::path path;  // the folder of the tag
  std::string tag;
  /// One file for the whole job at stages 0 to 2, one file for each rank at stage 3.
  std::vector<std::filesystem::path> model_files;
  /// One file for each rank; empty at stage 0 and in universal checkpoints.
  std::vector<std::filesystem::path> optimizer_files;
  /// Only in universal checkpoints: the folder of each parameter, by the parameter's name.
  std::map<std::string, std::filesystem::path> parameter_folders;
  bool is_universal = false;
};

/// `folder`: a tag's folder, or its parent folder with a file `latest` or `latest_universal`. Throws
/// UserError if the folder is no checkpoint of DeepSpeed, if a rank's file is missing, or if the checkpoint
/// was written with tensor, pipeline or expert parallelism.
DeepSpeedFolder find_deepspeed_files(FileSystem& files, const std::filesystem::path& folder);

}  // namespace zerorun
