#include "monitor/whole_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"

namespace zerorun {

void write_whole_file(const std::filesystem::path& path, std::string_view content,
                      const std::string& given_by) {
  const std::filesystem::path partial = path.string() + ".partial" + std::to_string(::gettid());
  std::ofstream file(partial, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (file && ::rename(partial.c_str(), path.c_str()) == 0) return;
  const std::string problem = std::strerror(errno);
  ::unlink(partial.c_str());
  throw UserError(path.string() + " cannot be written: " + problem +
                  ": choose a folder that exists and has room (" + given_by + ")");
}

}  // namespace zerorun
