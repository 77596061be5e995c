// Which files a DeepSpeed checkpoint consists of. Used by one thread.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun {

struct DeepSpeedFolder {
  std::filesystem::path path;  // of the tag
  std::string tag;
  /// One for the job at stages 0 to 2, one for each rank at stage 3.
  std::vector<std::filesystem::path> model_files;
  /// One for each rank; empty at stage 0 and in universal checkpoints.
  std::vector<std::filesystem::path> optimizer_files;
  /// Of a universal checkpoint: the folders of the parameters, by name.
  std::map<std::string, std::filesystem::path> parameter_folders;
  bool is_universal = false;
};

/// `folder`: a tag's folder, or the folder above it with a file `latest` or `latest_universal`. Throws
/// UserError if it is no checkpoint of DeepSpeed, a rank's file is missing, or it was written with tensor,
/// pipeline or expert parallelism.
DeepSpeedFolder find_deepspeed_files(FileSystem& files, const std::filesystem::path& folder);

}  // namespace zerorun
