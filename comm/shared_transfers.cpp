#include "comm/shared_transfers.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "base/cores.h"
#include "base/error.h"
#include "comm/nontemporal.h"
#include "comm/rank_order_sum.h"

namespace zerorun {
namespace {

using std::chrono::milliseconds;

// How often a waiting rank checks whether the processes of other ranks have ended.
constexpr milliseconds kLook(250);
// How long the destructor waits for other ranks to read the input of a collective, if wait() was never called
// for it.
constexpr milliseconds kPatienceWithDropped(10'000);

// How long a wait spins before it sleeps. Ranks spin only if every thread of every rank has a core: otherwise
// spinning would slow down the rank that is waited for. The spin is longer than a wake-up takes; with a
// shorter spin two ranks would keep finding each other asleep, and every collective would cost a wake-up.
std::chrono::microseconds spin_of(int world_size) {
  const bool own = count_usable_cores() >= world_size * at::get_num_threads();
  return std::chrono::microseconds(own ? 100 : 0);
}

uint64_t hash_of(const std::string& label) {
  uint64_t hash = 14695981039346656037ULL;
  for (unsigned char byte : label) hash = (hash ^ byte) * 1099511628211ULL;
  return hash;
}

void copy_bytes(const at::Tensor& to, int64_t slice, const void* from, size_t bytes) {
  copy_much(static_cast<char*>(to.mutable_data_ptr()) + static_cast<size_t>(slice) * bytes, from, bytes);
}

// Whether other ranks read this rank's input.
bool others_read(const CollectiveCall& call, int rank) {
  return call.kind == Collective::reduce_scatter || call.kind == Collective::all_gather ||
         call.kind == Collective::all_reduce || (call.kind == Collective::broadcast && rank == call.root);
}

bool is_over(const SharedTransfers::Transfer& transfer) {
  return transfer.over;
}

bool is_done_for_caller(const SharedTransfers::Transfer& transfer) {
  return transfer.lends ? transfer.over : transfer.taken;
}

void remove(std::vector<int>& ranks, const auto& condition) {
  if (!std::ranges::all_of(ranks, condition)) std::erase_if(ranks, condition);
}

}  // namespace

SharedTransfers::SharedTransfers(std::unique_ptr<HostRanks> ranks, int rank, int world_size,
                                 milliseconds timeout)
    : ranks_(std::move(ranks)),
      control_(ranks_->control),
      rank_(rank),
      world_size_(world_size),
      timeout_(timeout),
      spin_(spin_of(world_size)),
      slices_(world_size) {}

SharedTransfers::~SharedTransfers() {
  try {
    for (const auto& transfer : std::vector(under_way_)) {
      if (control_.has_failed(rank_)) return;
      if (transfer->lends) await(*transfer, is_over, std::min(timeout_, kPatienceWithDropped));
    }
  } catch (const std::exception&) {
    // Ignored, because other ranks that wait for this rank fail too and report the error.
  }
}

std::shared_ptr<SharedTransfers::Transfer> SharedTransfers::start(CollectiveCall call) {
  auto transfer = std::make_shared<Transfer>();
  transfer->call = std::move(call);
  const CollectiveCall& mine = transfer->call;
  transfer->which = {mine.kind, next_[static_cast<size_t>(mine.kind)]};
  free_slot(transfer->which);
  transfer->in_place = (mine.kind == Collective::all_gather || mine.kind == Collective::broadcast) &&
                       blocks().contains(mine.output.const_data_ptr(), mine.output.nbytes());
  ZR_CHECK(!transfer->in_place || mine.kind == Collective::broadcast ||
               mine.input.const_data_ptr() ==
                   static_cast<const char*>(mine.output.const_data_ptr()) + rank_ * mine.input.nbytes(),
           mine.label);
  if (others_read(mine, rank_) && !transfer->in_place && mine.input.numel() > 0) lend(*transfer);
  ++next_[static_cast<size_t>(mine.kind)];
  control_.post(transfer->which,
                {.numel = mine.input.numel(),
                 .offset = transfer->offset,
                 .label_hash = hash_of(mine.label),
                 .dtype = static_cast<int32_t>(mine.input.scalar_type()),
                 .root = mine.root,
                 .in_place = transfer->in_place},
                mine.label, mine.reason);
  std::lock_guard lock(mutex_);
  under_way_.push_back(transfer);
  advance_all();
  return transfer;
}

void SharedTransfers::wait(Transfer& transfer) {
  await(transfer, is_done_for_caller, timeout_);
}

int64_t SharedTransfers::scratch_bytes() const {
  std::lock_guard lock(mutex_);
  return scratch_bytes_;
}

// A slot is reused every kSlots collectives. If the previous collective in it is still in flight, waits for
// that collective.
void SharedTransfers::free_slot(Numbered next) {
  if (next.number < ControlBlock::kSlots) return;
  next.number -= ControlBlock::kSlots;
  std::shared_ptr<Transfer> earlier;
  {
    std::lock_guard lock(mutex_);
    const auto found =
        std::ranges::find_if(under_way_, [&](const auto& transfer) { return transfer->which == next; });
    if (found != under_way_.end()) earlier = *found;
  }
  if (earlier) await(*earlier, is_over, timeout_);
}

// Makes the input readable for other ranks: directly if it is in the arena, else through a copy. An
// all-reduce overwrites its input, so its input is always copied.
void SharedTransfers::lend(Transfer& transfer) {
  const at::Tensor& input = transfer.call.input;
  const auto place = arena().offset_of(input.const_data_ptr(), input.nbytes());
  if (place && transfer.call.kind != Collective::all_reduce) {
    transfer.lends = true;
    transfer.offset = *place;
    return;
  }
  const Block block = take_scratch(static_cast<int64_t>(input.nbytes()));
  transfer.offset = block.offset;
  transfer.staged_bytes = block.bytes;
  std::memcpy(arena().at(block.offset), input.const_data_ptr(), input.nbytes());
}

// Takes the smallest free block that is large enough. If there is none, frees the largest free block and
// allocates a new one, so the arena's count of blocks never exceeds the largest count that was in use at the
// same time.
SharedTransfers::Block SharedTransfers::take_scratch(int64_t bytes) {
  std::lock_guard lock(mutex_);
  auto best = scratch_.end();
  for (auto it = scratch_.begin(); it != scratch_.end(); ++it) {
    if (it->bytes >= bytes && (best == scratch_.end() || it->bytes < best->bytes)) best = it;
  }
  if (best != scratch_.end()) {
    const Block block = *best;
    scratch_.erase(best);
    return block;
  }
  const auto largest = std::ranges::max_element(scratch_, {}, &Block::bytes);
  if (largest != scratch_.end()) {
    arena().give_back(largest->offset, largest->bytes);
    scratch_bytes_ -= largest->bytes;
    scratch_.erase(largest);
  }
  const auto offset = arena().take(bytes);
  if (!offset) throw Error("the memory that ranks share has no room for " + std::to_string(bytes) + " bytes");
  scratch_bytes_ += bytes;
  return {*offset, bytes};
}

void SharedTransfers::advance_all() {
  bool taken = false;
  for (const auto& transfer : under_way_) {
    const bool before = transfer->taken;
    advance(*transfer);
    taken = taken || transfer->taken != before;
  }
  std::erase_if(under_way_, [](const auto& transfer) { return transfer->over; });
  if (taken) control_.ring_own();  // another thread may wait for one of these collectives
}

void SharedTransfers::advance(Transfer& transfer) {
  if (transfer.over || !transfer.disagreement.empty()) return;
  if (!transfer.taken) {
    for (; transfer.posted < world_size_; ++transfer.posted) {
      if (!control_.has_posted(transfer.posted, transfer.which)) return;
      compare(transfer, transfer.posted);
      if (!transfer.disagreement.empty()) return;
    }
    if (transfer.call.input.numel() > 0 && !transfer.in_place) take_share(transfer);
    transfer.taken = true;
    transfer.call.output.reset();  // the caller may free its output while other ranks still read
    if (!transfer.lends) transfer.call.input.reset();
    control_.finish(transfer.which);
  }
  while (transfer.finished < world_size_ && control_.has_finished(transfer.finished, transfer.which)) {
    ++transfer.finished;
  }
  if (transfer.finished < world_size_) return;
  transfer.over = true;
  if (transfer.staged_bytes > 0) scratch_.push_back({transfer.offset, transfer.staged_bytes});
  transfer.call.input.reset();
}

void SharedTransfers::compare(Transfer& transfer, int other) const {
  const Posting& mine = control_.posting(rank_, transfer.which);
  const Posting& theirs = control_.posting(other, transfer.which);
  if (mine.numel == theirs.numel && mine.label_hash == theirs.label_hash && mine.dtype == theirs.dtype &&
      mine.root == theirs.root && mine.in_place == theirs.in_place) {
    return;
  }
  transfer.disagreement = describe_disagreement(rank_, words_with_size(rank_, transfer.which), other,
                                                words_with_size(other, transfer.which));
}

std::string SharedTransfers::words_with_size(int rank, Numbered which) const {
  const Posting& posting = control_.posting(rank, which);
  return control_.words(rank, which) +
         (which.kind == Collective::broadcast ? " from rank " + std::to_string(posting.root) : "") + " (" +
         std::to_string(posting.numel) + " elements of " +
         c10::toString(static_cast<at::ScalarType>(posting.dtype)) +
         (posting.in_place != 0 ? " in memory that ranks share)" : ")");
}

const char* SharedTransfers::lent_by(int rank, const Transfer& transfer) const {
  const int64_t offset = control_.posting(rank, transfer.which).offset;
  return (rank == rank_ ? ranks_->arena->segment() : ranks_->lent[rank]).data() + offset;
}

void SharedTransfers::take_share(const Transfer& transfer) {
  const CollectiveCall& call = transfer.call;
  switch (call.kind) {
    case Collective::reduce_scatter:
      return take_sum(transfer, static_cast<int64_t>(call.output.nbytes()) * rank_);
    case Collective::all_reduce:
      return take_sum(transfer, 0);
    case Collective::all_gather: {
      const size_t bytes = call.input.nbytes();
      for (int step = 1; step < world_size_; ++step) {
        const int other = (rank_ + step) % world_size_;
        copy_bytes(call.output, other, lent_by(other, transfer), bytes);
      }
      const char* own = static_cast<const char*>(call.output.const_data_ptr()) + rank_ * bytes;
      if (own != call.input.const_data_ptr())
        copy_bytes(call.output, rank_, call.input.const_data_ptr(), bytes);
      return;
    }
    case Collective::broadcast:
      if (rank_ != call.root) {
        copy_bytes(call.output, 0, lent_by(call.root, transfer), call.output.nbytes());
      }
      return;
    case Collective::barrier:
      return;
  }
}

// output = the sum over ranks of their input, starting at byte `own_offset` of each input.
void SharedTransfers::take_sum(const Transfer& transfer, int64_t own_offset) {
  for (int rank = 0; rank < world_size_; ++rank) slices_[rank] = lent_by(rank, transfer) + own_offset;
  sum_in_rank_order(transfer.call.output, slices_);
}

void SharedTransfers::await(Transfer& transfer, Condition done, milliseconds timeout) {
  if (reached(transfer, done)) return;
  const Deadline deadline(timeout);
  auto look = Deadline::Clock::now() + kLook;
  control_.say_waiting(transfer.which);
  for (;;) {
    const uint32_t bell = control_.bell();
    if (reached(transfer, done)) break;
    const auto now = Deadline::Clock::now();
    if (now >= look || now >= deadline.end()) {
      check_on_others(transfer, done, deadline);
      look = now + kLook;
    }
    control_.sleep(bell, spin_, std::min(kLook, deadline.remaining()));
  }
  control_.say_waiting(std::nullopt);
}

// Advances `transfer` first, then all others, because other ranks may wait for them. Throws if the ranks
// disagree about `transfer`.
bool SharedTransfers::reached(Transfer& transfer, Condition done) {
  std::lock_guard lock(mutex_);
  advance(transfer);
  if (done(transfer)) return true;
  advance_all();
  if (!transfer.disagreement.empty()) fail(transfer.disagreement);
  return done(transfer);
}

// Throws if the process of a rank that `transfer` needs has ended, or if the deadline has passed.
void SharedTransfers::check_on_others(Transfer& transfer, Condition done, const Deadline& deadline) {
  const std::vector<int> ended = ranks_->processes.ended();
  const bool late = Deadline::Clock::now() >= deadline.end();
  if (ended.empty() && !late) return;
  if (reached(transfer, done)) return;  // the rank did its part before its process ended
  const std::vector<int> missing = absent(transfer);
  std::vector<int> gone;
  std::ranges::set_intersection(missing, ended, std::back_inserter(gone));
  if (gone.empty() && !late) return;
  const std::string disagreement = out_of_step(transfer, missing);
  if (!disagreement.empty()) fail(disagreement);
  const std::string what = describe(transfer.call);
  if (!gone.empty()) fail(what + ": " + words_of_ended(blamed(transfer, gone)));
  fail(missed_deadline(what, blamed(transfer, missing), deadline.timeout()));
}

// Returns the other ranks that have not posted. If this rank already has its output, returns those that have
// not finished instead.
std::vector<int> SharedTransfers::absent(const Transfer& transfer) const {
  std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size_; ++rank) {
    const bool there = transfer.taken ? control_.has_finished(rank, transfer.which)
                                      : control_.has_posted(rank, transfer.which);
    if (!there && rank != rank_) ranks.push_back(rank);
  }
  return ranks;
}

// Returns the ranks to name in the error. Removes from `absent` the ranks that have failed themselves, then
// the ranks that wait for a collective that this rank has already posted. A removal that would leave no rank
// is skipped.
std::vector<int> SharedTransfers::blamed(const Transfer& transfer, const std::vector<int>& absent) const {
  std::vector<int> ranks = absent;
  remove(ranks, [&](int rank) { return control_.has_failed(rank); });
  {
    std::lock_guard lock(mutex_);
    if (transfer.taken) return ranks;
  }
  remove(ranks, [&](int rank) {
    const auto theirs = control_.waiting(rank);
    return theirs && control_.has_posted(rank_, *theirs);
  });
  return ranks;
}

// Returns the error if a rank in `absent` waits for a collective that this rank has not started, or if
// another collective in flight has a disagreement. Returns an empty text otherwise.
std::string SharedTransfers::out_of_step(const Transfer& transfer, const std::vector<int>& absent) const {
  std::lock_guard lock(mutex_);
  for (const auto& other : under_way_) {
    if (!other->disagreement.empty()) return other->disagreement;
  }
  if (transfer.taken) return "";
  for (int rank : absent) {
    const auto theirs = control_.waiting(rank);
    if (!theirs || control_.has_posted(rank_, *theirs)) continue;
    return describe_disagreement(rank_, describe(transfer.call), rank, control_.words(rank, *theirs));
  }
  return "";
}

std::string SharedTransfers::words_of_ended(const std::vector<int>& ranks) const {
  std::string processes;
  for (int rank : ranks) {
    processes += (processes.empty() ? "" : ", ") + std::to_string(ranks_->processes.process(rank));
  }
  return name_ranks(ranks) + (ranks.size() == 1 ? " has ended (process " : " have ended (processes ") +
         processes + ")";
}

void SharedTransfers::fail(const std::string& message) {
  control_.say_failed();
  throw CommError(message);
}

}  // namespace zerorun
