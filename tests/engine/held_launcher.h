// The memory of the launcher (zerorun --hold_every) in a test's own process.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "base/held_memory.h"

namespace zerorun::testing {

// The launcher's memory, and the variable by which engines of this process find it.
class HeldLauncher {
 public:
  explicit HeldLauncher(int ranks, int64_t every = 1) : memory_(ranks, "test"), every_(every) { show(); }
  void show() const { ::setenv(kHeldMemoryVariable, memory_.text(every_).c_str(), 1); }
  ~HeldLauncher() { hide(); }
  void hide() const { ::unsetenv(kHeldMemoryVariable); }

 private:
  HeldMemory memory_;
  int64_t every_;
};

}  // namespace zerorun::testing
