// Comparisons of an engine's results with the expected ones. They throw Mismatch.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "tests/random_programs/model.h"

namespace zerorun::testing {

/// The engine's behaviour differs from the expected one.
struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void expect(bool condition, const std::string& what);
/// Expects an exception whose message contains `part`.
void expect_throws(const std::function<void()>& action, const std::string& part, const std::string& what);
/// Expects equal tensors, or with a `tolerance` ones that are as close. NaNs count as equal to each other.
void expect_same(const at::Tensor& found, const at::Tensor& expected, const std::string& what,
                 double tolerance = 0);

/// Reads one rank's notes of the plain run while the engine runs the same program.
class JournalReader {
 public:
  /// `tolerance`: of values.
  JournalReader(const Journal& expected, double tolerance) : expected_(expected), tolerance_(tolerance) {}

  /// Compares the next note with a value or a text of this run.
  void compare(const at::Tensor& found);
  void compare(const std::string& found);
  /// Runs `action` as the next note says: it must throw an error with this text, or not be run (kLeftOut).
  /// Returns whether it has had its effect. `what`: the operation.
  bool attempt(const std::string& what, const std::function<void()>& action);
  /// The text of the next note.
  const std::string& next_text();
  bool at_end() const { return next_ == expected_.size(); }

 private:
  const Note& next(const std::string& what);

  const Journal& expected_;
  double tolerance_;
  size_t next_ = 0;
};

}  // namespace zerorun::testing
