#include "comm/shared_memory/shared_transfers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/fnv1a.h"
#include "comm/nontemporal.h"
#include "comm/rank_order_sum.h"
#include "comm/shared_memory/rank_transfers.h"

namespace zerorun {
namespace {

using std::chrono::milliseconds;

void copy_bytes(const at::Tensor& to, int64_t slice, const void* from, size_t bytes) {
  copy_much(static_cast<char*>(to.mutable_data_ptr()) + static_cast<size_t>(slice) * bytes, from, bytes);
}

// Whether other ranks read this rank's input.
bool others_read(const CollectiveCall& call, int rank) {
  return call.kind == Collective::reduce_scatter || call.kind == Collective::all_gather ||
         call.kind == Collective::all_reduce || (call.kind == Collective::broadcast && rank == call.root);
}

bool is_read_by_all(const SharedTransfers::Transfer& transfer) {
  return transfer.over;
}

bool is_done_for_caller(const SharedTransfers::Transfer& transfer) {
  return transfer.lends ? transfer.over : transfer.taken;
}

}  // namespace

SharedTransfers::SharedTransfers(RankTransfers& rank, Group group, char* control, milliseconds timeout)
    : all_(rank),
      group_(std::move(group)),
      control_(control, group_.rank, group_.ranks, rank.board()),
      timeout_(timeout),
      messages_(rank, group_.id, group_.rank, group_.ranks,
                control + ControlBlock::bytes(static_cast<int>(group_.ranks.size())), timeout),
      slices_(group_.ranks.size()) {}

size_t SharedTransfers::control_bytes(int world_size) {
  return ControlBlock::bytes(world_size) + MessageBlock::bytes(world_size);
}

bool SharedTransfers::await_readers(const Deadline& deadline) {
  for (const auto& transfer : std::vector(under_way_)) {
    if (all_.board().has_failed(in_job(group_.rank))) return false;
    if (!transfer->lends) continue;
    // Other ranks that wait for this rank fail too, and report the error.
    if (!wait_for(*transfer, is_read_by_all, std::min(timeout_, deadline.remaining())).empty()) return false;
  }
  return true;
}

std::vector<int> SharedTransfers::in_job(std::vector<int> ranks) const {
  for (int& rank : ranks) rank = in_job(rank);
  return ranks;
}

std::shared_ptr<SharedTransfers::Transfer> SharedTransfers::start(CollectiveCall call) {
  all_.note_thread();
  auto transfer = std::make_shared<Transfer>();
  transfer->call = std::move(call);
  const CollectiveCall& mine = transfer->call;
  transfer->which = {mine.kind, next_[static_cast<size_t>(mine.kind)]};
  free_slot(transfer->which);
  transfer->in_place =
      (mine.kind == Collective::all_gather || mine.kind == Collective::broadcast) &&
      all_.host().blocks->contains(mine.output.const_data_ptr(), mine.output.nbytes(), group_.id);
  ZR_CHECK(!transfer->in_place || mine.kind == Collective::broadcast ||
               mine.input.const_data_ptr() ==
                   static_cast<const char*>(mine.output.const_data_ptr()) + group_.rank * mine.input.nbytes(),
           mine.label);
  if (others_read(mine, group_.rank) && !transfer->in_place && mine.input.numel() > 0) lend(*transfer);
  ++next_[static_cast<size_t>(mine.kind)];
  control_.post(transfer->which,
                {.numel = mine.input.numel(),
                 .offset = transfer->offset,
                 .label_hash = fnv1a(kFnv1aStart, mine.label),
                 .dtype = static_cast<int32_t>(mine.input.scalar_type()),
                 .root = mine.root,
                 .in_place = transfer->in_place},
                mine.label, mine.reason);
  std::lock_guard lock(all_.mutex());
  under_way_.push_back(transfer);
  all_.advance_all();
  return transfer;
}

void SharedTransfers::wait(Transfer& transfer) {
  await(transfer, is_done_for_caller);
}

bool SharedTransfers::is_over(Transfer& transfer) {
  return reached(transfer, is_done_for_caller);
}

// A slot is reused every kSlots collectives. If the previous collective in it is still in flight, waits for
// that collective.
void SharedTransfers::free_slot(Numbered next) {
  if (next.number < ControlBlock::kSlots) return;
  next.number -= ControlBlock::kSlots;
  std::shared_ptr<Transfer> earlier;
  {
    std::lock_guard lock(all_.mutex());
    const auto found =
        std::ranges::find_if(under_way_, [&](const auto& transfer) { return transfer->which == next; });
    if (found != under_way_.end()) earlier = *found;
  }
  if (earlier) await(*earlier, is_read_by_all);
}

// Makes the input readable for other ranks: directly if it is in the arena, else through a copy. An
// all-reduce overwrites its input, so its input is always copied.
void SharedTransfers::lend(Transfer& transfer) {
  const at::Tensor& input = transfer.call.input;
  SharedArena& arena = *all_.host().arena;
  const auto place = arena.offset_of(input.const_data_ptr(), input.nbytes());
  if (place && transfer.call.kind != Collective::all_reduce) {
    transfer.lends = true;
    transfer.offset = *place;
    return;
  }
  const ArenaScratch::Block block = all_.scratch().take(static_cast<int64_t>(input.nbytes()));
  transfer.offset = block.offset;
  transfer.staged_bytes = block.bytes;
  std::memcpy(arena.at(block.offset), input.const_data_ptr(), input.nbytes());
}

bool SharedTransfers::advance_all() {
  bool taken = messages_.advance();
  for (const auto& transfer : under_way_) {
    const bool before = transfer->taken;
    advance(*transfer);
    taken = taken || transfer->taken != before;
  }
  std::erase_if(under_way_, [](const auto& transfer) { return transfer->over; });
  return taken;
}

void SharedTransfers::advance(Transfer& transfer) {
  if (transfer.over || !transfer.disagreement.empty()) return;
  if (!transfer.taken) {
    for (; transfer.posted < world_size(); ++transfer.posted) {
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
  while (transfer.finished < world_size() && control_.has_finished(transfer.finished, transfer.which)) {
    ++transfer.finished;
  }
  if (transfer.finished < world_size()) return;
  transfer.over = true;
  if (transfer.staged_bytes > 0) all_.scratch().give_back({transfer.offset, transfer.staged_bytes});
  transfer.call.input.reset();
}

void SharedTransfers::compare(Transfer& transfer, int other) const {
  const Posting& mine = control_.posting(group_.rank, transfer.which);
  const Posting& theirs = control_.posting(other, transfer.which);
  if (mine.numel == theirs.numel && mine.label_hash == theirs.label_hash && mine.dtype == theirs.dtype &&
      mine.root == theirs.root && mine.in_place == theirs.in_place) {
    return;
  }
  transfer.disagreement =
      describe_disagreement(in_job(group_.rank), words_with_size(group_.rank, transfer.which), in_job(other),
                            words_with_size(other, transfer.which));
}

std::string SharedTransfers::words_with_size(int rank, Numbered which) const {
  const Posting& posting = control_.posting(rank, which);
  return control_.words(rank, which) +
         (which.kind == Collective::broadcast ? " from rank " + std::to_string(in_job(posting.root)) : "") +
         " (" + std::to_string(posting.numel) + " elements of " +
         c10::toString(static_cast<at::ScalarType>(posting.dtype)) +
         (posting.in_place != 0 ? " in memory that ranks share)" : ")");
}

const char* SharedTransfers::lent_by(int rank, const Transfer& transfer) const {
  const int64_t offset = control_.posting(rank, transfer.which).offset;
  const HostRanks& host = all_.host();
  return (rank == group_.rank ? host.arena->segment() : host.lent[in_job(rank)]).data() + offset;
}

void SharedTransfers::take_share(const Transfer& transfer) {
  const CollectiveCall& call = transfer.call;
  switch (call.kind) {
    case Collective::reduce_scatter:
      return take_sum(transfer, static_cast<int64_t>(call.output.nbytes()) * group_.rank);
    case Collective::all_reduce:
      return take_sum(transfer, 0);
    case Collective::all_gather: {
      const size_t bytes = call.input.nbytes();
      for (int step = 1; step < world_size(); ++step) {
        const int other = (group_.rank + step) % world_size();
        copy_bytes(call.output, other, lent_by(other, transfer), bytes);
      }
      const char* own = static_cast<const char*>(call.output.const_data_ptr()) + group_.rank * bytes;
      if (own != call.input.const_data_ptr())
        copy_bytes(call.output, group_.rank, call.input.const_data_ptr(), bytes);
      return;
    }
    case Collective::broadcast:
      if (group_.rank != call.root) {
        copy_bytes(call.output, 0, lent_by(call.root, transfer), call.output.nbytes());
      }
      return;
    case Collective::barrier:
      return;
  }
}

// output = the sum over ranks of their input, starting at byte `own_offset` of each input.
void SharedTransfers::take_sum(const Transfer& transfer, int64_t own_offset) {
  for (int rank = 0; rank < world_size(); ++rank) slices_[rank] = lent_by(rank, transfer) + own_offset;
  sum_in_rank_order(transfer.call.output, slices_, transfer.call.groups());
}

}  // namespace zerorun
