// Hashes the collectives that a rank has started, to compare them with other ranks'. NCCL matches collectives
// only by their order: if ranks gather buckets of equal size in different orders, they receive each other's
// values and no timeout occurs. After every 16 collectives of one kind the hash is kept as a checkpoint, and
// ranks compare their checkpoints. Owned by the watchdog and used under its lock.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace zerorun {

class IssueHistory {
 public:
  IssueHistory();

  /// Adds a collective that this rank has started.
  void add(const CollectiveCall& call);
  /// Returns this rank's last checkpoint of each kind as text, for difference() on other ranks.
  std::string summary() const;
  /// Returns the error message if this rank, `rank`, and rank `other` have started different collectives.
  /// `summary` is the other rank's summary(). Returns nothing if the collectives match, or if this rank has
  /// no checkpoint with the same count: it has started fewer collectives, or has overwritten the checkpoint.
  std::optional<std::string> difference(const std::string& summary, int rank, int other);

 private:
  struct Checkpoint {
    int64_t count = 0;  // number of collectives of this kind so far
    uint64_t hash = 0;  // hash of their labels and sizes
    std::string words;  // description of the last of these collectives
  };
  struct OfKind {
    int64_t count = 0;
    uint64_t hash = 0;
    int64_t agreed = 0;            // the ranks' collectives match up to this count
    std::vector<Checkpoint> kept;  // ring buffer
  };

  std::array<OfKind, kCollectiveKinds> kinds_;
};

}  // namespace zerorun
