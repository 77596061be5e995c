// The collectives of one rank that are in flight, with their progress. Owned by the rank's communicator and
// by each Work. Any thread, but only one at a time may call start().
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/deadline.h"
#include "comm/shared_memory/host_ranks.h"
#include "comm/thread_use.h"

namespace zerorun {

class SharedTransfers {
 public:
  /// A collective, from its start until every rank has read the input that it needs.
  struct Transfer {
    CollectiveCall call;
    Numbered which;
    int64_t offset = 0;        // arena offset of the input that other ranks read
    int64_t staged_bytes = 0;  // size of the copy that was made in the arena for other ranks; 0: no copy
    bool lends = false;        // other ranks read the caller's tensor directly
    bool in_place = false;     // the data is in memory that all ranks share, so nothing is copied
    bool taken = false;        // this rank has read the other ranks' input and has its output
    bool over = false;         // every rank has read all input and has its output
    int posted = 0;            // ranks 0 to posted - 1 are known to have posted
    int finished = 0;          // ranks 0 to finished - 1 are known to have finished
    std::string disagreement;  // the error if ranks posted calls that do not match; else empty
  };

  SharedTransfers(std::unique_ptr<HostRanks> ranks, int rank, int world_size,
                  std::chrono::milliseconds timeout);
  /// Waits until other ranks have read this rank's input, at most ten seconds for each collective. Without
  /// the wait, those ranks could read zeros, because freed memory reads as zeros.
  ~SharedTransfers();

  /// Posts the collective, and processes the input that other ranks have already posted.
  std::shared_ptr<Transfer> start(CollectiveCall call);
  /// Returns when the output is complete and the input may be written again. Throws CommError.
  void wait(Transfer& transfer);

  SharedArena& arena() { return *ranks_->arena; }
  SharedBlocks& blocks() { return *ranks_->blocks; }
  int64_t scratch_bytes() const;

 private:
  struct Block {
    int64_t offset;
    int64_t bytes;
  };
  using Condition = bool (*)(const Transfer&);
  /// The error that a wait will throw if it stays the same.
  struct Stuck {
    std::string error;
    Deadline::Clock::time_point since;
  };

  void lend(Transfer& transfer);
  Block take_scratch(int64_t bytes);
  void free_slot(Numbered next);

  // The caller of these functions holds mutex_.
  void advance(Transfer& transfer);
  void advance_all();
  void compare(Transfer& transfer, int other) const;
  std::string words_with_size(int rank, Numbered which) const;
  void take_share(const Transfer& transfer);
  void take_sum(const Transfer& transfer, int64_t own_offset);
  const char* lent_by(int rank, const Transfer& transfer) const;

  void await(Transfer& transfer, Condition done, std::chrono::milliseconds timeout);
  bool reached(Transfer& transfer, Condition done);
  void check_on_others(Transfer& transfer, Condition done, const Deadline& deadline);
  void check_order(const Transfer& transfer, Stuck& stuck);
  std::vector<int> absent(const Transfer& transfer) const;
  std::vector<int> blamed(const Transfer& transfer, const std::vector<int>& absent) const;
  std::string out_of_step(const Transfer& transfer, const std::vector<int>& absent) const;
  std::string words_of_ended(const std::vector<int>& ranks) const;
  [[noreturn]] void fail(const std::string& message);

  const std::unique_ptr<HostRanks> ranks_;
  ControlBlock& control_;
  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::microseconds spin_;
  std::array<uint64_t, kCollectiveKinds> next_{};
  ThreadUse threads_;

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Transfer>> under_way_;  // in the order of start()
  std::vector<const void*> slices_;                   // scratch of take_sum(), kept to avoid allocations
  std::vector<Block> scratch_;                        // free blocks in the arena for copies of input
  int64_t scratch_bytes_ = 0;                         // total size of these blocks, free or in use
};

}  // namespace zerorun
