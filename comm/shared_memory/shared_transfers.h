// The collectives of one rank in one group that are in flight, with their progress. Owned by the rank's
// transfers (rank_transfers.h). Any thread, but only one at a time may call start().
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
#include "comm/shared_memory/control_block.h"
#include "comm/shared_memory/shared_messages.h"

namespace zerorun {

class RankTransfers;

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

  /// What identifies a group.
  struct Group {
    uint64_t id = 0;         // the same on all ranks of the group, and another one for each group
    int rank = 0;            // this rank's index in `ranks`
    std::vector<int> ranks;  // as numbers in the job
    at::Tensor memory = {};  // of the control block, if this object keeps it
  };

  /// `control` is the group's control block, which has control_bytes(). `rank` has the transfers of this rank
  /// in all groups, and outlives this object.
  SharedTransfers(RankTransfers& rank, Group group, char* control, std::chrono::milliseconds timeout);

  /// Posts the collective, and processes the input that other ranks have already posted.
  std::shared_ptr<Transfer> start(CollectiveCall call);
  /// Returns when the output is complete and the input may be written again. Throws CommError.
  void wait(Transfer& transfer);
  /// Does this rank's part of all collectives in flight. Returns whether wait() would not have to wait.
  bool is_over(Transfer& transfer);

  static size_t control_bytes(int world_size);
  uint64_t id() const { return group_.id; }
  SharedMessages& messages() { return messages_; }
  /// Call this when nobody uses the group any more.
  void leave() { left_ = true; }
  /// Waits until other ranks have read this rank's input. Returns false if they have not by the deadline, or
  /// if this rank has failed.
  bool await_readers(const Deadline& deadline);

  // The caller of the next three holds the mutex of RankTransfers.

  /// Whether nobody uses the group, every rank has read its input, and no message is on the way.
  bool has_ended() const { return left_ && under_way_.empty() && messages_.is_idle(); }
  bool has_started(Numbered which) const { return control_.has_posted(group_.rank, which); }
  /// Does this rank's part of the collectives and messages in flight. Returns whether one is complete since.
  bool advance_all();

 private:
  using Condition = bool (*)(const Transfer&);

  int world_size() const { return static_cast<int>(group_.ranks.size()); }
  int in_job(int rank) const { return group_.ranks[static_cast<size_t>(rank)]; }
  std::vector<int> in_job(std::vector<int> ranks) const;
  void lend(Transfer& transfer);
  void free_slot(Numbered next);

  // The caller of these functions holds the mutex.
  void advance(Transfer& transfer);
  void compare(Transfer& transfer, int other) const;
  std::string words_with_size(int rank, Numbered which) const;
  void take_share(const Transfer& transfer);
  void take_sum(const Transfer& transfer, int64_t own_offset);
  const char* lent_by(int rank, const Transfer& transfer) const;

  // These functions return the error that ends the wait, or an empty text.
  std::string wait_for(Transfer& transfer, Condition done, std::chrono::milliseconds timeout);
  std::string error_of_others(Transfer& transfer, Condition done, const Deadline& deadline);
  std::string suspicion_of_order(const Transfer& transfer) const;

  void await(Transfer& transfer, Condition done);
  bool reached(Transfer& transfer, Condition done);
  std::string disagreement_of(const Transfer& transfer) const;
  int first_absent(const Transfer& transfer) const;
  std::vector<int> absent(const Transfer& transfer) const;
  std::vector<int> blamed(const Transfer& transfer, const std::vector<int>& absent) const;
  std::string out_of_step(const Transfer& transfer, const std::vector<int>& absent) const;
  std::string words_of_ended(const std::vector<int>& ranks) const;
  std::string cause_elsewhere(const std::vector<int>& ranks) const;

  RankTransfers& all_;
  const Group group_;
  ControlBlock control_;
  const std::chrono::milliseconds timeout_;
  SharedMessages messages_;
  std::array<uint64_t, kCollectiveKinds> next_{};
  bool left_ = false;

  std::vector<std::shared_ptr<Transfer>> under_way_;  // in the order of start()
  std::vector<const void*> slices_;                   // scratch of take_sum(), kept to avoid allocations
};

}  // namespace zerorun
