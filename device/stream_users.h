// The streams that use a block of memory, each with an event for the end of its last use. The next stream
// that takes the memory over waits for these events. Owned by the owner of the memory; one thread at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "device/streams.h"

namespace zerorun {

class StreamUsers {
 public:
  bool has(StreamId stream) const;
  void add(StreamId stream);
  /// Call this when no stream uses the memory any more. Removes all users, but keeps their events for reuse.
  void clear() { count_ = 0; }

  /// Calls visit(stream) for each user.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (size_t i = 0; i < count_; ++i) visit(users_[i].stream);
  }

  /// Makes later work on `stream` wait for all work that was given to the other users so far.
  void hand_over(Streams& streams, StreamId stream, Handover handover);
  /// The first half of hand_over(): records the end of all users' work so far.
  void record_ends(Streams& streams);
  /// The second half: makes later work on `stream` wait for the recorded ends.
  void wait_for_ends(Streams& streams, StreamId stream, Handover handover) const;

 private:
  struct User {
    StreamId stream;
    Event end;
  };

  std::vector<User> users_;  // the first count_ are in use
  size_t count_ = 0;
};

}  // namespace zerorun
