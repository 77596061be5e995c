// What a rank has started so far, for comparing ranks: NCCL matches collectives by their order alone, so that
// ranks which gather equal sizes in another order swap values, and nobody waits in vain. Owned by the
// watchdog, under its lock. Pure.
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

  /// The next one of its kind.
  void add(const CollectiveCall& call);
  /// How far this rank has come, for the others.
  std::string told() const;
  /// The error when rank `other`, which has `told` so, and this one, `rank`, have not started the same.
  /// Nothing while this one has not come as far, or has come much further.
  std::optional<std::string> difference(const std::string& told, int rank, int other);

 private:
  struct Checkpoint {
    int64_t count = 0;  // collectives of the kind
    uint64_t hash = 0;  // of their labels and sizes
    std::string words;  // the last of them
  };
  struct OfKind {
    int64_t count = 0;
    uint64_t hash = 0;
    int64_t agreed = 0;            // up to here the others have started the same
    std::vector<Checkpoint> kept;  // in a ring
  };

  std::array<OfKind, kCollectiveKinds> kinds_;
};

}  // namespace zerorun
