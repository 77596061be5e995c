// Which of a model's marked blocks are recomputed in backward. Owned by the engine, and by graphs that are
// still to be differentiated. Any thread.
//
// [Note: budget] With a budget the first optimizer step recomputes all blocks and measures, in each
// recomputation, the bytes that the block would keep for backward, and the time. After that step the ranks of
// a pipeline stage take the largest bytes and times that any of them has measured, so that all decide alike,
// and keep blocks instead of recomputing them: those first that save the most time per byte, as long as the
// peak stays within the budget. The peak counts, of every micro-batch between its forward and its backward,
// the inputs of all blocks, but for those in a file, and the activations of those that are kept, and of one
// micro-batch the block that is recomputed at that time: in backward, when the blocks after it have let go of
// theirs.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "activations/kept_inputs.h"
#include "comm/communicator.h"
#include "config/config_types.h"

namespace zerorun {

/// What the recomputation of a block for one micro-batch has cost.
struct BlockCost {
  int64_t inputs = 0;       // bytes of its inputs
  int64_t in_file = 0;      // of these, those that are in a file until they are used
  int64_t activations = 0;  // bytes that its operators keep for backward, besides the inputs
  double seconds = 0;
};

/// A block that has been measured.
struct MeasuredBlock {
  std::string name;
  BlockCost cost;
  bool kept = false;
};

/// The most bytes that the blocks hold at a time. `blocks`: in the order of forward. `in_flight`: how many
/// micro-batches are between their forward and their backward.
int64_t peak_of(const std::vector<MeasuredBlock>& blocks, int64_t in_flight);
/// Sets `kept` of those blocks that are not to be recomputed ([Note: budget]).
void keep_within(int64_t budget, int64_t in_flight, std::vector<MeasuredBlock>& blocks);

class Recomputation {
 public:
  Recomputation(const RecomputeConfig& config, InputHome home);

  /// Whether the block is recomputed. `is_inside`: within another marked block, where only patterns count.
  bool chooses(const std::string& name, bool is_inside);
  const InputHome& home() const { return home_; }
  /// Whether recomputations are to be timed and measured.
  bool measures() const;
  void add(const std::string& name, const BlockCost& cost);
  /// Whether this is the first block of this name, whose recomputation is compared with its forward.
  bool compares(const std::string& name);

  /// Whether the budget is still to be spent.
  bool is_undecided() const;
  /// Spends the budget, once. A collective of `ranks`, which are all of the job; those of one pipeline stage
  /// decide alike. Returns what was decided, for the log.
  std::string decide(Communicator& ranks, int stage, int64_t in_flight);
  /// Returns what recomputation has cost since the last call, for the log; empty if nothing was timed.
  std::string report();

 private:
  RecomputeConfig config_;
  InputHome home_;
  mutable std::mutex mutex_;  // guards all members below
  bool undecided_;
  std::map<std::string, int64_t, std::less<>>
      places_;                         // of the blocks that `every` counts, in forward's order
  std::vector<MeasuredBlock> blocks_;  // in that order; only with a budget
  std::set<std::string> compared_;     // blocks
  int64_t timed_count_ = 0;
  double timed_seconds_ = 0;
};

}  // namespace zerorun
