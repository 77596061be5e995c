// Memory in which ranks hold their state, so that they can start again from it after a failure
// (docs/restarts.md). It belongs to the launcher, or in a job on several hosts to a keeper on each host. It
// stays while ranks end and start, and is freed with the job. Each rank has two files: while it writes one
// generation of its state, the one before stays whole.
//
// [Note: the text of held memory] Ranks find it by a text: the N of --hold_every, and for each host of the
// job, in the order of their ranks, one of
//   memory TAG RANKS PATH...           of the rank's own host; two paths for each of its RANKS
//   copies TAG RANKS PATH...           likewise, behind it: what the host before this one has copied here
//   keeper HOST ADDRESS PORT RANKS     of another host, whose keeper gives it to read (base/held_server.h)
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace zerorun {

/// The environment variable for that text.
inline constexpr char kHeldMemoryVariable[] = "ZERORUN_HELD_MEMORY";

using HeldSlots = std::array<UniqueFd, 2>;

inline constexpr char kMemoryWord[] = "memory", kCopiesWord[] = "copies";

/// The owner's side.
class HeldMemory {
 public:
  HeldMemory() = default;
  /// Empty files for this many ranks. `tag` tells them from those of other jobs: a word of at most 16
  /// characters.
  HeldMemory(int ranks, std::string tag);

  /// "memory TAG RANKS PATH...", with another word for copies. Empty if the system has no memory files, or
  /// the host too many ranks.
  std::string place(const char* word = kMemoryWord) const;
  /// The text for ranks of a job whose only host this is, which hold the state after each step whose number
  /// `every` divides. Empty likewise.
  std::string text(int64_t every) const;
  const std::vector<HeldSlots>& ranks() const { return ranks_; }

 private:
  std::vector<HeldSlots> ranks_;
  std::string tag_;
};

/// Where the memory of another host's ranks is read.
struct HeldKeeper {
  std::string host;  // its name
  std::string address;
  int port = 0;
  int first_rank = 0;
  int ranks = 0;
};

/// What such a keeper's part of the text is.
std::string keeper_place(const HeldKeeper& keeper);

/// A rank's side.
struct OpenHeldMemory {
  std::vector<HeldSlots> ranks;     // of the job; empty: there is none. Not open: on another host
  std::vector<HeldSlots> copies;    // on this host, of the ranks of the host before it
  std::vector<HeldKeeper> keepers;  // of the other hosts
  int64_t every = 1;
};

/// Opens what the variable names.
OpenHeldMemory open_held_memory();

/// Whether `place`, of HeldMemory::place(), is memory of a process of this host that still runs.
bool is_held_memory(const std::string& place);

}  // namespace zerorun
