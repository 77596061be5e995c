#include "engine/resolved_config.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/file_path.h"
#include "comm/agreement.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

// Returns the error, or an empty text. Concurrent readers of `file` see either the old or the new text.
std::string write_whole(const fs::path& file, const std::string& text) {
  const fs::path temporary = file.string() + ".tmp" + std::to_string(::getpid());
  errno = 0;
  std::ofstream stream(temporary, std::ios::binary);
  stream << text;
  stream.close();
  if (stream && std::rename(temporary.c_str(), file.c_str()) == 0) return {};
  const int error = errno;
  std::remove(temporary.c_str());
  return std::strerror(error == 0 ? EIO : error);
}

// Throws UserError if the file cannot be written.
void write(const Config& config, const fs::path& folder) {
  const fs::path file = folder / kResolvedConfigName;
  if (config.resolved.empty()) {
    throw UserError(file.string() +
                    ": there is no resolved configuration to write, as this Config was not made by "
                    "load_config() or parse_config(); leave InitializeOptions::output_folder empty");
  }
  std::error_code error;
  fs::create_directories(folder, error);
  const std::string reason = error ? error.message() : write_whole(file, config.resolved);
  if (reason.empty()) return;
  throw UserError(file.string() + ": the resolved configuration cannot be written: " + reason +
                  "; give InitializeOptions::output_folder a folder that rank 0 can write to");
}

}  // namespace

void write_resolved_config(const Config& config, const fs::path& folder, Communicator& communicator) {
  on_all_ranks(communicator, "the resolved configuration", [&] {
    if (folder.empty()) return;
    check_path(folder, "", "initialize");
    if (communicator.rank() == 0) write(config, folder);
  });
}

}  // namespace zerorun
