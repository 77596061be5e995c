// Memory shared by processes of one host: a memfd, which other processes open through /proc/PID/fd/FD. It has
// no name and does not use /dev/shm, so the kernel frees it when the last process that maps it ends, even if
// that process is killed. Owned by the code that maps it. One thread.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "base/unique_fd.h"

namespace zerorun {

class SharedSegment {
 public:
  SharedSegment() = default;
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  /// Creates a segment of `bytes` zeros, whose pages take memory only once they are written. `purpose` is the
  /// segment's name in /proc/PID/maps. Throws Error.
  static SharedSegment create(const char* purpose, size_t bytes);
  /// Opens the segment of `bytes` bytes that process `pid` has open as file descriptor `descriptor`. Throws
  /// Error.
  static SharedSegment open(pid_t pid, int descriptor, size_t bytes, bool writable);

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int descriptor() const { return file_.get(); }
  /// Closes the descriptor, which the mapping does not need. Call it when all processes have opened the
  /// segment.
  void close_descriptor() { file_.reset(); }

 private:
  void map(bool writable);

  UniqueFd file_;
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace zerorun
