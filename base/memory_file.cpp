#include "base/memory_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>

namespace zerorun {

UniqueFd open_memory_file(const char* path, const char* name) {
  UniqueFd fd(::open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_open()) return {};
  std::array<char, 64> link{};
  const std::string self = "/proc/self/fd/" + std::to_string(fd.get());
  const ssize_t size = ::readlink(self.c_str(), link.data(), link.size());
  const std::string found(link.data(), size > 0 ? static_cast<size_t>(size) : 0);
  if (!found.starts_with(std::string("/memfd:") + name)) return {};
  return fd;
}

}  // namespace zerorun
