// A hash of the collectives that a rank has started, to compare with other ranks'. NCCL matches collectives
// by their order alone: ranks that gather buckets of equal size in different orders swap values, and no
// timeout shows it. Owned by the watchdog and used under its lock. Pure.
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

  /// Adds the next collective of its kind.
  void add(const CollectiveCall& call);
  /// This rank's latest checkpoints as text, for difference() on other ranks.
  std::string summary() const;
  /// The error message if rank `other`, whose summary() is `summary`, and this rank, `rank`, have started
  /// different collectives. None if they match, or if this rank is not that far yet or too far ahead to
  /// compare.
  std::optional<std::string> difference(const std::string& summary, int rank, int other);

 private:
  struct Checkpoint {
    int64_t count = 0;  // collectives of this kind so far
    uint64_t hash = 0;  // of their labels and sizes
    std::string words;  // description of the last one
  };
  struct OfKind {
    int64_t count = 0;
    uint64_t hash = 0;
    int64_t agreed = 0;            // this rank and the other one match up to this count
    std::vector<Checkpoint> kept;  // ring buffer
  };

  std::array<OfKind, kCollectiveKinds> kinds_;
};

}  // namespace zerorun
