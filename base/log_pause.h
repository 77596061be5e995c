// Silences the log of a thread, for runs that only plan a training.
#pragma once

namespace zerorun {

/// During its lifetime this thread's messages are dropped.
class LogPause {
 public:
  LogPause();
  ~LogPause();
  LogPause(const LogPause&) = delete;
  LogPause& operator=(const LogPause&) = delete;
};

}  // namespace zerorun
