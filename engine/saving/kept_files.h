// The files of frozen parameters that a generation in memory has from an earlier one in the same slot. Used
// by the engine's thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/held_files.h"
#include "checkpoint/state_file.h"
#include "engine/saving/frozen_files.h"

namespace zerorun {

class KeptFiles {
 public:
  /// Writes `files` into the slot, and their facts into `facts`. Those of frozen parameters come first, so
  /// that each has the same place in all generations, and are not written again unless they have changed.
  /// Returns where the first file begins that was written.
  int64_t write(std::vector<checkpoint::FileToWrite>& files, const FrozenFiles& frozen,
                checkpoint::HeldFiles& slot, std::map<std::string, checkpoint::StateFileFacts>& facts);
  /// The slot has other content now.
  void forget() { kept_.clear(); }

 private:
  struct Kept {
    checkpoint::StateFileFacts facts;
    checkpoint::HeldFiles::Place place;
    uint64_t digest;
    int64_t changes;  // FrozenFiles::changes()
  };
  std::map<std::string, Kept> kept_;  // by file
};

}  // namespace zerorun
