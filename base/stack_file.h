// Lets the launcher ask this process for the stack of a thread: a signal makes the thread write it to a
// memory file, which the launcher reads through /proc. Python's faulthandler may write there first
// (python/zerorun/stacks.py).
#pragma once

#include <cstdint>

namespace zerorun {

struct StackFile {
  int signal = 0;  // 0: none can be had
  int descriptor = -1;
};

/// Installs the handler of the signal, unless the program has one of its own for it, and makes the file.
/// `written` counts the stacks in it. Call it once in a process.
StackFile open_stack_file(int32_t* written);

}  // namespace zerorun
