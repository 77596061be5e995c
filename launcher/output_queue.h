// Bytes waiting to be written to one of the launcher's own streams. Writing never blocks, so a stalled reader
// cannot keep the launcher from ending the ranks. Owned by the Console, used by one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace zerorun::launcher {

class OutputQueue {
 public:
  explicit OutputQueue(int fd);

  void push(std::string_view bytes);
  /// Writes as many pending bytes as possible without blocking.
  void write_some();
  size_t pending() const { return bytes_.size() - written_; }
  /// The descriptor to poll for POLLOUT while bytes are pending.
  int fd() const { return own_.is_open() ? own_.get() : fd_; }
  /// The errno of the first failed write; 0: none. After a failure, all bytes are dropped.
  int error() const { return error_; }

 private:
  UniqueFd own_;
  int fd_;
  std::string bytes_;
  size_t written_ = 0;
  int error_ = 0;
};

}  // namespace zerorun::launcher
