#include "base/small_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/unique_fd.h"

namespace zerorun {
namespace {

// The longest pause of a program that writes into a pipe.
constexpr int kPauseMilliseconds = 10'000;

}  // namespace

SmallFile read_small_file(const std::string& file, size_t most_bytes) {
  // Without O_NONBLOCK, open() would wait until somebody opens a pipe for writing.
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat found {};
  if (!fd.is_open() || ::fstat(fd.get(), &found) != 0) return {{}, std::strerror(errno)};
  if (S_ISDIR(found.st_mode)) return {{}, "it is a directory"};
  SmallFile read;
  std::array<char, 65536> block;
  while (read.text.size() <= most_bytes) {
    const ssize_t size = ::read(fd.get(), block.data(), block.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) {
      pollfd entry = {fd.get(), POLLIN, 0};
      if (::poll(&entry, 1, kPauseMilliseconds) == 0) return {{}, "nothing is written into this pipe"};
      continue;
    }
    if (size < 0) return {{}, std::strerror(errno)};
    if (size == 0) {
      const bool nobody_writes = S_ISFIFO(found.st_mode) && read.text.empty();
      return nobody_writes ? SmallFile{{}, "it is a pipe into which nobody writes"} : read;
    }
    read.text.append(block.data(), static_cast<size_t>(size));
  }
  return {{}, "it has more than " + std::to_string(most_bytes >> 20) + " MiB"};
}

}  // namespace zerorun
