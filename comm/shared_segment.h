// Memory that processes of one host share: a memfd, which another process opens through /proc/PID/fd/FD. It
// has no name and does not use /dev/shm, so it is freed with the last process that maps it, however that
// process ends. Owned by the code that maps it; one thread.
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

  /// `bytes` of zeros; pages take memory once they are written. `purpose` is its name in /proc/PID/maps.
  /// Throws Error.
  static SharedSegment create(const char* purpose, size_t bytes);
  /// The segment of `bytes` that process `pid` has open as `descriptor`. Throws Error.
  static SharedSegment open(pid_t pid, int descriptor, size_t bytes, bool writable);

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int descriptor() const { return file_.get(); }
  /// Call when all processes have opened it: the mapping needs no descriptor.
  void close_descriptor() { file_.reset(); }

 private:
  void map(bool writable);

  UniqueFd file_;
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace zerorun
