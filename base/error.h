// The errors that ZeroRun throws on purpose, and the check of its own invariants. Used by every folder; any
// thread.
//
//   UserError       a user's mistake (config, arguments, files): programs end with exit code 2
//   CommError       other ranks are missing, late or out of step: exit code 1
//   TrainingError   training cannot go on, on any rank (fp16 at its smallest loss scale): exit code 1
//   InternalError   an invariant of ZeroRun itself does not hold: exit code 1, please report
//
// Every message says what was expected, what was found and how to fix the problem.
#pragma once

#include <stdexcept>
#include <string>

namespace zerorun {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class UserError : public Error {
 public:
  using Error::Error;
};

class CommError : public Error {
 public:
  using Error::Error;
};

class TrainingError : public Error {
 public:
  using Error::Error;
};

class InternalError : public Error {
 public:
  using Error::Error;
};

[[noreturn]] void fail_check(const char* condition, const char* file, int line, const std::string& detail);

}  // namespace zerorun

/// Checks an invariant of ZeroRun's own code. Evaluates `detail` (anything that std::string accepts) only if
/// `condition` is false.
#define ZR_CHECK(condition, detail) \
  ((condition) ? void(0) : ::zerorun::fail_check(#condition, __FILE__, __LINE__, detail))
