#include "tests/support/stream_checker.h"

#include <algorithm>

#include "base/error.h"

namespace zerorun::testing {
namespace {

uintptr_t address_of(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory);
}

std::string name_of_stream(StreamId stream) {
  constexpr std::array<const char*, 4> kNames = {"compute", "gather", "reduce", "copy"};
  if (stream == StreamChecker::kHost) return "the host";
  return stream < static_cast<StreamId>(kNames.size()) ? kNames[stream] : "stream " + std::to_string(stream);
}

}  // namespace

void StreamChecker::join(Clock& clock, const Clock& other) {
  for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

void StreamChecker::add_memory(const void* begin, size_t bytes, StreamId stream) {
  memory_.push_back({address_of(begin), address_of(begin) + bytes});
  const std::string what = "fill with zeros";
  if (stream == kHost) return use_by_host(begin, bytes, true, what);
  use(begin, bytes, stream, true, what);
}

void StreamChecker::remove_memory(const void* begin) {
  forget_memory(begin);
  for (const Clock& clock : clocks_) join(host_, clock);
}

void StreamChecker::unmap_memory(const void* begin, const Clock& waited) {
  const Memory gone = *std::ranges::find(memory_, address_of(begin), &Memory::begin);
  for (const Use& use : uses_) {
    if (use.end <= gone.begin || gone.end <= use.begin || use.time <= waited[use.stream]) continue;
    violations_.push_back("memory is unmapped that " + name_of_stream(use.stream) +
                          (use.writes ? " writes (" : " reads (") + use.what + ")");
  }
  forget_memory(begin);
}

void StreamChecker::forget_memory(const void* begin) {
  const auto found = std::ranges::find(memory_, address_of(begin), &Memory::begin);
  ZR_CHECK(found != memory_.end(), "memory that nobody added");
  const Memory gone = *found;
  memory_.erase(found);
  std::erase_if(uses_, [&](const Use& use) { return use.begin < gone.end && gone.begin < use.end; });
}

bool StreamChecker::knows(const void* address) const {
  return std::ranges::any_of(memory_, [at = address_of(address)](const Memory& memory) {
    return memory.begin <= at && at < memory.end;
  });
}

// Work that the host starts on `stream` comes after everything that the host has waited for.
void StreamChecker::follow_host(StreamId stream) {
  join(clocks_.at(stream), host_);
}

void StreamChecker::use(const void* begin, size_t bytes, StreamId stream, bool writes,
                        const std::string& what) {
  if (bytes == 0 || !knows(begin)) return;
  follow_host(stream);
  Clock& clock = clocks_.at(stream);
  note({address_of(begin), address_of(begin) + bytes, stream, ++clock[stream], writes, what}, clock);
}

void StreamChecker::use_by_host(const void* begin, size_t bytes, bool writes, const std::string& what) {
  if (bytes == 0 || !knows(begin)) return;
  note({address_of(begin), address_of(begin) + bytes, kHost, ++host_[kHost], writes, what}, host_);
}

void StreamChecker::note(const Use& mine, const Clock& clock) {
  for (const Use& other : uses_) {
    if (other.end <= mine.begin || mine.end <= other.begin || !(other.writes || mine.writes)) continue;
    if (other.time <= clock[other.stream]) continue;
    violations_.push_back(name_of_stream(mine.stream) + (mine.writes ? " writes (" : " reads (") + mine.what +
                          ") what " + name_of_stream(other.stream) +
                          (other.writes ? " writes (" : " reads (") + other.what +
                          "), and nothing puts them in order");
  }
  // Removes earlier uses of the same bytes that this use replaces: all of them if it writes, otherwise only
  // reads by this stream. Later uses need to be compared with this use only.
  std::erase_if(uses_, [&](const Use& other) {
    const bool covered = mine.begin <= other.begin && other.end <= mine.end;
    return covered && (mine.writes || (!other.writes && other.stream == mine.stream));
  });
  uses_.push_back(mine);
}

StreamChecker::Clock StreamChecker::now(StreamId stream) {
  follow_host(stream);
  return clocks_.at(stream);
}

void StreamChecker::wait(const Clock& event, StreamId stream) {
  join(clocks_.at(stream), event);
}

void StreamChecker::wait_on_host(const Clock& event) {
  join(host_, event);
}

}  // namespace zerorun::testing
