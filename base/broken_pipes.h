// Writes to connections that the other side has closed, by libraries that do not keep SIGPIPE away. The
// signal would end the process without a word; the error of the write is enough.
#pragma once

#include <csignal>

namespace zerorun {

/// While it exists, a write of this thread to a closed connection fails and raises no signal. Threads that
/// are started meanwhile keep that. One thread.
class NoBrokenPipes {
 public:
  NoBrokenPipes();
  ~NoBrokenPipes();
  NoBrokenPipes(const NoBrokenPipes&) = delete;
  NoBrokenPipes& operator=(const NoBrokenPipes&) = delete;

 private:
  sigset_t before_;
};

}  // namespace zerorun
