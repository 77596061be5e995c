// The collectives that one rank of a host has under way, and their progress. Owned by the rank's
// communicator and by each Work; any thread, but only one at a time starts.
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
#include "comm/host_ranks.h"

namespace zerorun {

class SharedTransfers {
 public:
  /// A collective, from its start until every rank has its result.
  struct Transfer {
    CollectiveCall call;
    Numbered which;
    int64_t offset = 0;        // in the arena, of what the others read
    int64_t staged_bytes = 0;  // of a copy that was made for them
    bool lends = false;        // they read the caller's own memory
    bool in_place = false;     // what is moved is in shared memory, where all ranks have it
    bool taken = false;        // this rank has its share
    bool over = false;         // every rank has
    int posted = 0;            // ranks from 0 on that are known to have posted
    int finished = 0;          // likewise to have finished
    std::string disagreement;  // what the ranks brought does not fit together
  };

  SharedTransfers(std::unique_ptr<HostRanks> ranks, int rank, int world_size,
                  std::chrono::milliseconds timeout);
  /// Waits for ranks that still read from this one, since freed memory reads as zeros: at most ten seconds
  /// for each collective.
  ~SharedTransfers();

  /// Posts the collective, and reads the parts of other ranks that are already posted.
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

  void lend(Transfer& transfer);
  Block take_scratch(int64_t bytes);
  void free_slot(Numbered next);

  // With the mutex.
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

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Transfer>> under_way_;  // in the order of their starts
  std::vector<const void*> slices_;                   // of take_sum()
  std::vector<Block> scratch_;                        // free
  int64_t scratch_bytes_ = 0;                         // free and in use
};

}  // namespace zerorun
