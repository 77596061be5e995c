#include "samples/common/files.h"

#include <unistd.h>
#include <zerorun/program.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace zerorun {
namespace fs = std::filesystem;

std::string read_text(const fs::path& file) {
  std::error_code error;
  if (fs::is_directory(file, error)) throw UserError(file.string() + ": is a folder, expected a file");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw UserError(file.string() + ": cannot be opened: " + std::strerror(errno));
  std::ostringstream text;
  text << stream.rdbuf();
  if (stream.bad()) throw UserError(file.string() + ": cannot be read: " + std::strerror(errno));
  return text.str();
}

nlohmann::json read_json(const fs::path& file) {
  const std::string text = read_text(file);
  try {
    return nlohmann::json::parse(text);
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

void create_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    throw UserError(folder.string() +
                    ": cannot be created: " + (error ? error.message() : "there is a file of that name"));
}

}  // namespace zerorun
