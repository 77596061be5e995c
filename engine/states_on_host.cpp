#include "engine/states_on_host.h"

#include <algorithm>

#include "base/memory_report.h"

namespace zerorun {

StatesOnHost::StatesOnHost(const SliceStore& store, Communicator& communicator)
    : store_(&store), communicator_(&communicator) {}

StatesOnHost::Moved& StatesOnHost::find_or_add(const StateTensor& state) {
  const at::Tensor& memory = state.memory;
  const auto found =
      std::ranges::find_if(moved_, [&](const Moved& moved) { return moved.memory.is_same(memory); });
  if (found != moved_.end()) return *found;
  const AllocatingFor scope(MemoryUse::on_host, static_cast<int64_t>(memory.nbytes()));
  return moved_.emplace_back(
      Moved{.memory = memory,
            .on_host = communicator_->device().allocate_on_host(memory.numel(), memory.scalar_type()),
            .is_sent = state.kind == StateKind::gradient});
}

void StatesOnHost::finish_all_work() const {
  Streams& streams = communicator_->device().streams();
  std::vector<StreamId> all{streams.current()};
  for (const Lane lane : {Lane::gather, Lane::reduce, Lane::copy}) all.push_back(streams.of(lane));
  for (const StreamId stream : all) {
    Event done;
    streams.record(done, stream);
    streams.await(done, communicator_->timeout(), "all work of this rank, before its states move");
  }
}

void StatesOnHost::offload(std::span<const StateKind> kinds) {
  Device& device = communicator_->device();
  std::vector<size_t> leaving;
  store_->for_each([&](int, const StateTensor& state) {
    if (state.home != Home::device || std::ranges::find(kinds, state.kind) == kinds.end()) return;
    if (!device.streams().asynchronous() || state.memory.numel() == 0) return;
    Moved& moved = find_or_add(state);
    if (!moved.away) leaving.push_back(static_cast<size_t>(&moved - moved_.data()));
  });
  away_ = true;
  if (leaving.empty()) return;
  finish_all_work();
  for (const size_t index : leaving) device.copy(moved_[index].on_host, moved_[index].memory);
  finish_all_work();
  for (const size_t index : leaving) {
    const at::Tensor& memory = moved_[index].memory;
    memory.storage().set_data_ptr(c10::DataPtr(nullptr, memory.device()));
    moved_[index].away = true;
  }
}

void StatesOnHost::reload() {
  const AllocatingFor scope(MemoryUse::moments);
  Device& device = communicator_->device();
  bool comes_back = false;
  for (Moved& moved : moved_) {
    if (!moved.away) continue;
    const int64_t numel = moved.memory.numel();
    const at::ScalarType dtype = moved.memory.scalar_type();
    const at::Tensor back =
        moved.is_sent ? communicator_->allocate(numel, dtype) : device.allocate(numel, dtype);
    device.copy(back, moved.on_host);
    moved.memory.storage().set_data_ptr(back.storage().set_data_ptr(c10::DataPtr(nullptr, back.device())));
    moved.away = false;
    comes_back = true;
  }
  if (comes_back) finish_all_work();
  away_ = false;
}

bool StatesOnHost::has(const StateTensor& state) const {
  return std::ranges::any_of(
      moved_, [&](const Moved& moved) { return moved.away && moved.memory.is_same(state.memory); });
}

int64_t StatesOnHost::bytes() const {
  int64_t total = 0;
  for (const Moved& moved : moved_) total += static_cast<int64_t>(moved.on_host.nbytes());
  return total;
}

}  // namespace zerorun
