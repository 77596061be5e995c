// Which operations of a program the engine must refuse, and with which words: what programs do to gradients,
// parameters and the engine's state has its effect or is refused by name, and never changes results silently.
#pragma once

#include <set>
#include <vector>

#include "tests/random_programs/plain_training.h"
#include "tests/random_programs/program.h"

namespace zerorun::testing {

/// Not an error: neither run does the operation, because its outcome is not defined here.
inline constexpr const char* kLeftOut = "left out";

// Parts of the messages of errors that the engine must throw.
inline constexpr const char* kStepWithoutBackward = "without an earlier backward";
inline constexpr const char* kScaleAtMinimum = "the loss scale is at its minimum";
inline constexpr const char* kScheduleThrows = "thrown by the schedule";

class ExpectedErrors {
 public:
  /// `training` must outlive this object.
  ExpectedErrors(const Program& program, const PlainTraining& training);

  /// Part of the message with which the engine refuses the operation; null if it has its effect. kLeftOut if
  /// neither run shall do it. Call it once, before the operation.
  const char* of(const Operation& operation);
  /// Call this after a backward that was not refused.
  void note_backward();
  /// Call this if the gradients since the last optimizer step go: an update, or a program that drops them.
  void note_end_of_window();
  /// Call this after a load. `in_window`: the checkpoint was saved in a window.
  void note_load(bool in_window);
  /// Call this for a new engine.
  void begin();
  /// Whether the operation, Kind::drop, drops the gradients.
  bool drops(const Operation& operation) const;

  int open_scopes = 0;
  int open_no_syncs = 0;

 private:
  using Held = std::vector<std::vector<char>>;  // by rank and parameter

  const char* of_backward(const Operation& operation);
  const char* of_step();
  const char* of_gradients(const Operation& operation);
  const char* of_drop(const Operation& operation);
  const char* of_group(const Operation& operation);
  const char* of_saving(bool loads);
  const char* of_states();
  const char* by_marks();
  bool plain() const;
  bool acts_on_slices(const Operation& operation) const;

  const Program& program_;
  const Setup& setup_;
  const PlainTraining& training_;
  Held held_;              // has a mark
  Held gone_;              // the program has taken the mark away
  bool partial_ = false;   // it has taken some marks, and not all
  bool unheard_ = false;   // it has taken all, and the engine has not heard of it yet
  bool loaded_ = false;    // marks are those of a checkpoint
  bool is_set_ = false;    // grad() of a trained parameter is the program's own
  std::set<int> flipped_;  // parameters that the program has frozen or unfrozen
  bool away_ = false;      // between offload_states() and reload_states()
  bool has_boundary_ = false;
  bool boundary_ = false;
  bool declared_ = false;  // there was a backward that was declared the last one before a step
};

}  // namespace zerorun::testing
