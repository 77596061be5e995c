#include "base/timeline.h"

#include <pthread.h>
#include <semaphore.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <vector>

namespace zerorun {
namespace timeline {

std::atomic<int> rings_in_use = 0;

namespace {

// The calling thread's number in a ring. Rings stay until the process ends, so the address identifies one.
struct ThreadPlace {
  const TimelineRing* ring = nullptr;
  uint16_t number = 0;
};

thread_local TimelineRing* thread_ring = nullptr;
thread_local ThreadPlace thread_place;
std::atomic<TimelineRing*> common_ring = nullptr;  // of threads without one; null unless one ring is in use

// Uses of rings, one for each engine.
struct Uses {
  std::mutex mutex;
  std::vector<TimelineRing*> rings;
};
Uses& uses() {
  static Uses& all = *new Uses;  // an engine may live until the process ends
  return all;
}

// The caller holds the mutex.
void follow(const std::vector<TimelineRing*>& rings) {
  const bool one = !rings.empty() && std::ranges::count(rings, rings.front()) == std::ssize(rings);
  common_ring.store(one ? rings.front() : nullptr, std::memory_order_release);
  rings_in_use.store(static_cast<int>(rings.size()), std::memory_order_relaxed);
}

// A forked child shares the ring's memory with its parent, so it may not write there.
void switch_off_in_child() {
  rings_in_use.store(0, std::memory_order_relaxed);
}

sem_t* requests() {
  static sem_t semaphore;
  static const bool is_ready = ::sem_init(&semaphore, 0, 0) == 0;
  return is_ready ? &semaphore : nullptr;
}

TimelineRing* current() {
  return thread_ring != nullptr ? thread_ring : common_ring.load(std::memory_order_acquire);
}

}  // namespace

uint64_t record(TimelineKind kind, TimelineName name, int32_t number, int64_t value) {
  TimelineRing* ring = current();
  if (ring == nullptr) return 0;
  if (thread_place.ring != ring) thread_place = {ring, ring->add_thread()};
  if (thread_place.number >= kTimelineThreads) return 0;
  const uint16_t track = is_phase(name) ? kEngineTrack : thread_place.number;
  return ring->write(kind, name, track, number, value);
}

void note_use() {
  if (!is_on()) return;
  TimelineRing* ring = current();
  if (ring != nullptr && ring->start_forward()) record(TimelineKind::begin, TimelineName::forward);
}

void request_files() noexcept {
  if (sem_t* semaphore = requests()) ::sem_post(semaphore);
}

void await_request() {
  sem_t* semaphore = requests();
  while (semaphore != nullptr && ::sem_wait(semaphore) != 0 && errno == EINTR) continue;
}

void use(TimelineRing& ring) {
  [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, switch_off_in_child);
  requests();  // made before a signal's handler needs it
  const std::lock_guard lock(uses().mutex);
  uses().rings.push_back(&ring);
  thread_ring = &ring;
  follow(uses().rings);
}

bool leave(TimelineRing& ring) {
  const std::lock_guard lock(uses().mutex);
  auto& rings = uses().rings;
  const auto found = std::ranges::find(rings, &ring);
  if (found != rings.end()) rings.erase(found);
  const bool is_used = std::ranges::find(rings, &ring) != rings.end();
  if (thread_ring == &ring && !is_used) thread_ring = nullptr;
  follow(rings);
  return is_used;
}

}  // namespace timeline

TimelineBusy::TimelineBusy() : ring_(timeline::is_on() ? timeline::current() : nullptr) {
  if (ring_ != nullptr && ring_->start_other()) timeline::record(TimelineKind::end, TimelineName::forward);
}

TimelineBusy::~TimelineBusy() {
  if (ring_ != nullptr) ring_->end_other();
}

}  // namespace zerorun
