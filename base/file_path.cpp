#include "base/file_path.h"

#include "base/error.h"
#include "base/printable.h"

namespace zerorun {

void check_path(const std::filesystem::path& directory, const std::string& name, const std::string& call) {
  if (directory.empty()) throw UserError(call + "(): the folder's name is empty: name a folder");
  const std::string path = (name.empty() ? directory : directory / name).string();
  if (path.find('\0') == std::string::npos) return;
  throw UserError(call + "(): the path " + printable(path) +
                  " has a 0 byte (shown as ?), which no name of a file has: give another one");
}

}  // namespace zerorun
