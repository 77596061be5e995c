// Small checkpoints of one file, for tests of publications.
#pragma once

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "checkpoint/publication.h"

namespace zerorun::testing {

inline std::string manifest_of(const std::string& file, int64_t saving) {
  return R"({"format": "zerorun checkpoint", "saving": )" + std::to_string(saving) + R"(, "files": {")" +
         file + "\": {}}}";
}

inline void publish(checkpoint::FileSystem& files, const std::filesystem::path& directory,
                    const std::string& tag, const std::string& text, bool save_latest = true,
                    int64_t keep_last = 0) {
  checkpoint::Publication publication(files, directory, tag);
  write_text(files, publication.folder() / "data.safetensors", text);
  publication.publish(manifest_of("data.safetensors", publication.saving()), save_latest);
  publication.remove_old(keep_last);
}

/// The names in the folder without the lock's file.
inline std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  names.erase(checkpoint::kLockName);
  return names;
}

/// A checkpoint that no publication has written.
inline void make_checkpoint(const std::filesystem::path& folder, int64_t saving = 0) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "data.safetensors") << "d";
  std::ofstream(folder / "manifest.json") << manifest_of("data.safetensors", saving);
}

}  // namespace zerorun::testing
