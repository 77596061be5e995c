// One generation of a rank's state in a memory file: a page that says where the rest is, the files of the
// rank's part of a checkpoint, and a text that describes them. Used by one thread.
//
// [Note: a whole generation] The first page is cleared before anything else is written and gets its mark
// last, and the text has a checksum. So a rank that is killed at any moment leaves a generation or none, and
// what changes later is found: in the first page or the text by read_generation(), in the files by their
// checksums.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/held_files.h"

namespace zerorun::checkpoint {

/// Where in the memory file the first file begins.
inline constexpr int64_t kHeldBegin = kPageBytes;

struct HeldGeneration {
  std::string run;      // tells the run's folder of checkpoints from others
  std::string attempt;  // tells this start of the ranks from all others
  int64_t step = 0;     // optimizer steps so far
  /// Of rank 0: the checkpoint's manifest without files and with empty `numbers`, as JSON.
  std::string manifest = {};
  std::string part = {};                                // to_json() of this rank's files and numbers
  std::map<std::string, HeldFiles::Place> places = {};  // of its files
};

/// Whether the memory file has had a generation, or been cleared, since it was made.
bool was_used(int descriptor);
/// From now on the memory file has no generation.
void clear_generation(int descriptor);
/// Completes a generation whose files lie before `end`; returns its own end. Throws UserError if the system
/// has no memory for it.
int64_t finish_generation(int descriptor, const HeldGeneration& generation, int64_t end);
/// Absent if the memory file has none, because it was never completed. Throws UserError if it is damaged, and
/// CommError if the keeper of another host does not answer.
std::optional<HeldGeneration> read_generation(const HeldSlot& slot);
inline std::optional<HeldGeneration> read_generation(int descriptor) {
  return read_generation(HeldSlot{.descriptor = descriptor});
}

/// Takes memory for so many bytes in advance. Throws UserError if the system does not give it.
void reserve_generation(int descriptor, int64_t bytes);

}  // namespace zerorun::checkpoint
