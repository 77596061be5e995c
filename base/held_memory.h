// Memory of the launcher in which ranks hold their state, so that they can start again from it after a
// failure (docs/restarts.md). It stays while ranks end and start, and is freed with the job. Each rank has
// two files: while it writes one generation of its state, the one before stays whole.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace zerorun {

/// The environment variable for HeldMemory::text().
inline constexpr char kHeldMemoryVariable[] = "ZERORUN_HELD_MEMORY";

using HeldSlots = std::array<UniqueFd, 2>;

/// The launcher's side.
class HeldMemory {
 public:
  HeldMemory() = default;
  /// Empty files for this many ranks, to hold the state after each step whose number `every` divides.
  HeldMemory(int ranks, int64_t every);

  /// How ranks find it: for kHeldMemoryVariable. Empty if the system has no memory files, or the host too
  /// many ranks.
  std::string text() const;

 private:
  std::vector<HeldSlots> ranks_;
  int64_t every_ = 0;
};

/// A rank's side: the files of all ranks of the host.
struct OpenHeldMemory {
  std::vector<HeldSlots> ranks;  // empty: there is none
  int64_t every = 1;
};

/// Opens what the variable names.
OpenHeldMemory open_held_memory();

}  // namespace zerorun
