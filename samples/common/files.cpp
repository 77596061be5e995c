#include "samples/common/files.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zerorun/program.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace samples {
namespace fs = std::filesystem;

using zerorun::UserError;

std::string read_text(const fs::path& file) {
  constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 30;  // a sparse file can have any size
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (fs::is_directory(status)) throw UserError(file.string() + ": is a folder, expected a file");
  // Opening a pipe would wait until somebody writes into it.
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw UserError(file.string() + ": is no regular file");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw UserError(file.string() + ": cannot be opened: " + std::strerror(errno));
  const std::uintmax_t bytes = fs::file_size(file, error);
  if (!error && bytes > kMostBytes) {
    throw UserError(file.string() + ": has " + std::to_string(bytes) + " bytes, expected at most " +
                    std::to_string(kMostBytes));
  }
  std::ostringstream text;
  text << stream.rdbuf();
  if (stream.bad()) throw UserError(file.string() + ": cannot be read: " + std::strerror(errno));
  return text.str();
}

nlohmann::json read_json(const fs::path& file) {
  constexpr int kDeepest = 100;  // copying and printing a value recurse at every level
  const std::string text = read_text(file);
  const auto check_depth = [&](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
    if (depth > kDeepest)
      throw UserError(file.string() + ": expected JSON of at most " + std::to_string(kDeepest) + " levels");
    return true;
  };
  try {
    return nlohmann::json::parse(text, check_depth);
  } catch (const nlohmann::json::exception& error) {
    throw UserError(file.string() + ": expected JSON: " + error.what());
  }
}

void write_text(const fs::path& file, const std::string& text) {
  const fs::path partial = file.string() + "." + std::to_string(::getpid()) + ".partial";
  errno = 0;
  std::ofstream stream(partial, std::ios::binary);
  stream << text;
  stream.close();
  std::error_code error(stream ? 0 : errno, std::generic_category());
  if (!error) fs::rename(partial, file, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(partial, ignored);
  throw UserError(file.string() + ": cannot be written: " + error.message());
}

fs::path user_cache_folder(const std::string& name) {
  const auto variable = [](const char* key) {
    const char* value = std::getenv(key);
    return fs::path(value ? value : "");
  };
  fs::path caches = variable("XDG_CACHE_HOME");
  if (!caches.is_absolute()) caches = variable("HOME") / ".cache";
  std::error_code error;
  if (const fs::path folder = caches / name; caches.is_absolute()) {
    fs::create_directories(folder, error);
    if (fs::is_directory(folder, error) && ::access(folder.c_str(), W_OK) == 0) return folder;
  }
  // Everybody may write to the folder for temporary files, so another user may have made this one.
  const fs::path folder = fs::temp_directory_path() / (name + "-" + std::to_string(::getuid()));
  ::mkdir(folder.c_str(), 0700);
  struct stat found {};
  if (::lstat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != ::getuid() ||
      (found.st_mode & 022) != 0) {
    throw UserError(folder.string() +
                    ": is no folder of this user that only this user can write: remove it, or "
                    "set XDG_CACHE_HOME");
  }
  return folder;
}

void create_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    throw UserError(folder.string() +
                    ": cannot be created: " + (error ? error.message() : "there is a file of that name"));
}

}  // namespace samples
