#include "engine/states_on_host.h"

#include <algorithm>

namespace zerorun {

StatesOnHost::StatesOnHost(const SliceStore& store, Communicator& communicator)
    : store_(&store), communicator_(&communicator) {}

StatesOnHost::Moved& StatesOnHost::find_or_add(const at::Tensor& memory) {
  const auto found =
      std::ranges::find_if(moved_, [&](const Moved& moved) { return moved.memory.is_same(memory); });
  if (found != moved_.end()) return *found;
  return moved_.emplace_back(
      Moved{.memory = memory,
            .on_host = communicator_->device().allocate_on_host(memory.numel(), memory.scalar_type())});
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
  away_ = true;
  if (!device.streams().asynchronous()) return;
  std::vector<size_t> leaving;
  store_->for_each([&](int, const StateTensor& state) {
    if (state.home != Home::device || std::ranges::find(kinds, state.kind) == kinds.end()) return;
    Moved& moved = find_or_add(state.memory);
    if (!moved.away && state.memory.numel() > 0)
      leaving.push_back(static_cast<size_t>(&moved - moved_.data()));
  });
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
  Device& device = communicator_->device();
  for (Moved& moved : moved_) {
    if (!moved.away) continue;
    const at::Tensor there = device.allocate(moved.memory.numel(), moved.memory.scalar_type());
    device.copy(there, moved.on_host);
    moved.memory.storage().set_data_ptr(there.storage().set_data_ptr(c10::DataPtr(nullptr, there.device())));
    moved.away = false;
  }
  if (!moved_.empty()) finish_all_work();
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
