#include "samples/gpt2/own_sources.h"

#include <zerorun/program.h>

#include <algorithm>

namespace samples {
namespace fs = std::filesystem;
namespace {

using zerorun::UserError;

bool is_own_source(const fs::path& file) {
  const fs::path extension = file.extension();
  return extension == ".h" || extension == ".cpp" || extension == ".md";
}

// Hidden folders hold downloads (.deps) and git's own files; build folders hold generated files.
bool is_skipped_folder(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return name.starts_with(".") || name.starts_with("build");
}

}  // namespace

fs::path checkout_above(const fs::path& folder) {
  for (fs::path checkout = folder; checkout != checkout.parent_path(); checkout = checkout.parent_path()) {
    if (fs::exists(checkout / "samples/gpt2/own_sources.h")) return checkout;
  }
  return folder;
}

std::vector<fs::path> own_sources(const fs::path& source_dir) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entries(source_dir, fs::directory_options::skip_permission_denied, error);
  while (!error && entries != fs::recursive_directory_iterator()) {
    const fs::path& path = entries->path();
    if (entries->is_directory(error)) {
      if (is_skipped_folder(path)) entries.disable_recursion_pending();
    } else if (is_own_source(path) && entries->is_regular_file(error)) {
      files.push_back(path);
    }
    entries.increment(error);
  }
  if (files.empty()) {
    throw UserError("no --data, and ZeroRun's own sources are not in " + source_dir.string() +
                    ": give the text to train on with --data FILE");
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace samples
