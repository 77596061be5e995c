// Shows the launcher what each rank of its host does now: what it waits for from other ranks, or what it is
// in else. From that the launcher finds a rank that makes no progress while others wait for it
// (launcher/hung_ranks.h).
//
// [Note: activity] A rank shows what its driving threads do: those that have joined the job or called the
// engine. Waits of other threads, as of one that writes a checkpoint, do not say that the rank waits. Each
// change is counted, and the launcher sees by the count that a rank goes on. Without a launcher all of this
// writes to memory of the process.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/rank_file.h"
#include "base/stack_file.h"

namespace zerorun {

/// The environment variable with the path of the launcher's board.
inline constexpr char kActivityBoardVariable[] = "ZERORUN_ACTIVITY_BOARD";

/// What a rank is in. Between calls of the engine it is in the program's own code.
enum class Activity : int32_t {
  no_engine,     // the program, before initialize()
  initializing,  // initialize()
  program,
  forward,  // the program, once it has used parameters
  backward,
  step,
  batch,  // train_batch(), eval_batch()
  saving,
  loading,
};

/// What the board shows of one rank. Plain memory: the launcher may read it while the rank writes.
struct ActivityNow {
  int64_t process = 0;   // whose entry it is; 0: nobody has joined
  int64_t thread = 0;    // the system's number of the driving thread that changed something last
  uint64_t changes = 0;  // a sign of life
  Activity activity = {};
  int32_t waiters = 0;           // driving threads that wait for other ranks
  int32_t has_given_up = 0;      // the last wait has failed, and nothing has been done since
  int32_t stack_signal = 0;      // makes the process write its stack; 0: it cannot
  int32_t stack_file = -1;       // the process's descriptor of the memory file to which it writes
  int32_t stacks = 0;            // that it has written
  std::array<char, 256> wait{};  // for what it waits, or waited last
  std::array<char, 96> part{};   // the part of the program in which it is, if the program says so
};

/// The launcher's side. Any thread.
class ActivityBoard {
 public:
  ActivityBoard() = default;
  explicit ActivityBoard(int ranks);
  std::string path() const { return file_.path(); }
  ActivityNow of(int local_rank) const;

 private:
  RankFile file_;
};

/// Whether the rank waits for others, or has waited until its deadline.
bool waits_for_ranks(const ActivityNow& now);
/// "in engine.step()", "in its own code between calls of the engine, in 'the data loader'".
std::string place_of(const ActivityNow& now);

namespace activity {

extern std::atomic<ActivityNow*> shown;  // null until a thread of this process drives

/// The calling thread drives this rank from now on. Opens the board at the first call, which also lets the
/// launcher ask for this process's stack.
void drive();
/// How the launcher asks for this process's stack; no signal: it does not.
StackFile stack_file();
/// A use of parameters: after a call of the engine, the forward has begun.
void note_use();

}  // namespace activity

/// A call of the engine: this object's lifetime. The calling thread drives.
class ActivityScope {
 public:
  explicit ActivityScope(Activity activity);
  ~ActivityScope();
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  Activity before_;
};

/// A wait for other ranks: this object's lifetime. Shown if the calling thread drives.
class ShownWait {
 public:
  /// "KIND of LABEL REASON". `kind` and `reason` may be empty.
  ShownWait(std::string_view kind, std::string_view label, std::string_view reason = {});
  /// If an exception ends the wait, it has failed.
  ~ShownWait();
  ShownWait(const ShownWait&) = delete;
  ShownWait& operator=(const ShownWait&) = delete;

  /// The wait has failed.
  void give_up() { has_failed_ = true; }

 private:
  bool is_shown_;
  int exceptions_;
  bool has_failed_ = false;
};

}  // namespace zerorun
