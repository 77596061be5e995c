// Memory that processes of one host share: a memfd, which another process opens through /proc/PID/fd/FD. It
// has no name anywhere, so nothing of it is left when the last process that maps it has gone, however it
// went, and /dev/shm has no part in it. Owned by whoever maps it; one thread.
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

  /// `bytes` of zeros; they take memory where they are written to. `purpose` is what /proc/PID/maps calls it.
  /// Throws Error.
  static SharedSegment create(const char* purpose, size_t bytes);
  /// The segment of `bytes` that process `pid` has under `descriptor`. Throws Error.
  static SharedSegment open(pid_t pid, int descriptor, size_t bytes, bool writable);

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int descriptor() const { return file_.get(); }
  /// All who need it have opened it: the mapping stays without.
  void close_descriptor() { file_.reset(); }

 private:
  void map(bool writable);

  UniqueFd file_;
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace zerorun
