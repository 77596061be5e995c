#include "samples/gpt2/corpus.h"

#include <zerorun/program.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace zerorun {
namespace fs = std::filesystem;
namespace {

void append_file(const fs::path& file, std::vector<uint8_t>& bytes) {
  const std::string name = "--data " + file.string();
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (!fs::exists(status)) throw UserError(name + ": no such file (expected a text file)");
  if (fs::is_directory(status))
    throw UserError(name + ": is a directory; name the files in it: --data " + (file / "FILE").string() +
                    "...");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw UserError(name + ": cannot be opened: " + std::strerror(errno));
  const size_t size_before = bytes.size();
  std::vector<char> chunk(1 << 20);
  while (stream.read(chunk.data(), static_cast<std::streamsize>(chunk.size())) || stream.gcount() > 0) {
    bytes.insert(bytes.end(), chunk.begin(), chunk.begin() + stream.gcount());
  }
  if (stream.bad()) throw UserError(name + ": cannot be read: " + std::strerror(errno));
  if (bytes.size() == size_before) throw UserError(name + ": the file is empty; expected text");
}

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

Corpus read_corpus(const std::vector<fs::path>& files, int64_t min_bytes) {
  Corpus corpus;
  corpus.description = std::to_string(files.size()) + (files.size() == 1 ? " file" : " files");
  for (const fs::path& file : files) append_file(file, corpus.bytes);
  const auto size = static_cast<int64_t>(corpus.bytes.size());
  if (size < min_bytes) {
    const std::string from = files.size() == 1 ? files.front().string() : corpus.description;
    throw UserError("--data: " + from + " with " + std::to_string(size) +
                    " bytes is too short for one sample, which takes " + std::to_string(min_bytes) +
                    " (--seq + 1): give more text or a smaller --seq");
  }
  return corpus;
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
                    " any more: give the text to train on with --data FILE");
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace zerorun
