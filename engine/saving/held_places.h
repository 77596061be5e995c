// Where the generations of all ranks lie: in memory of this host, or with the keepers of the job's other
// hosts. Owned by HeldGenerations; used by the engine's thread, and files_of() by threads that read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/held_client.h"
#include "base/held_memory.h"
#include "checkpoint/held_generation.h"
#include "checkpoint/verification.h"
#include "comm/communicator.h"

namespace zerorun {

/// The folder's name of a generation: the path of what load_newest() restores begins with it.
inline constexpr const char* kHeldFolder = "memory";

class HeldPlaces {
 public:
  /// Opens what the launcher has named for the job's `ranks`.
  explicit HeldPlaces(const Communicator& ranks);

  /// Why no generation can be taken; empty: one can.
  std::string problem() const;
  /// Whether the launcher has named memory, though it may not fit.
  bool is_named() const { return is_named_; }
  int64_t every() const { return memory_.every; }
  /// The files of this rank; null if there is a problem.
  HeldSlots* own();
  /// Whether the rank is of this host.
  bool is_here(int rank) const;

  /// The files of a generation of all ranks, with a manifest. If that cannot be made, there is none, as in a
  /// damaged checkpoint, and the log warns.
  std::unique_ptr<checkpoint::HeldFiles> files_of(const std::string& run, const std::string& attempt,
                                                  int64_t step) const;
  /// Which files this rank verifies: of those on its host, each by one rank.
  checkpoint::VerifiedPart part_to_verify() const;
  /// Ends the connections to keepers until something is read again.
  void disconnect();

 private:
  checkpoint::HeldGeneration find(int rank, const std::string& run, const std::string& attempt,
                                  int64_t step) const;
  HeldSlot slot(int rank, int number) const;

  OpenHeldMemory memory_;
  std::vector<std::unique_ptr<HeldClient>> clients_;  // as memory_.keepers
  int rank_, world_size_;
  bool is_named_ = false;
};

}  // namespace zerorun
