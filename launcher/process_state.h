// What the system says about a process of a rank: whether it runs, sleeps or is stopped, and its stack, if it
// can write it. Used by the Job on the main thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/activity_board.h"

namespace zerorun::launcher {

/// The letter of the state in the text of a /proc/PID/stat; '?' if there is none.
char state_in(const std::string& stat);
/// The letter of a thread in /proc, such as S; '?' if it is not known. `root` replaces "/" (for tests).
char state_of(pid_t process, pid_t thread, const std::string& root = "");
/// "sleeps (in futex_wait_queue)", "is stopped by a signal", for a thread of a process.
std::string describe_state(pid_t process, pid_t thread, const std::string& root = "");

/// The process that the board names, if it belongs to the rank whose process group is `group`; else `group`
/// itself, which is its first process.
pid_t process_of(const ActivityNow& now, pid_t group);

/// Asks the process for the stack of the thread that drives the rank, and waits a moment for it. Empty if it
/// cannot be had. `board`, `rank`: where the process says that it has written it.
std::vector<std::string> ask_for_stack(const ActivityBoard& board, int rank, pid_t process);

}  // namespace zerorun::launcher
