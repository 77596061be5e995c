// The streams that use a block of memory, with an event for each stream's last use, for the stream that
// takes the memory over. Owned by the memory's owner; one thread at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "device/streams.h"

namespace zerorun {

class StreamUsers {
 public:
  bool has(StreamId stream) const;
  void add(StreamId stream);
  /// No stream uses the memory any more. Keeps the events for reuse.
  void clear() { count_ = 0; }

  /// Makes later work on `stream` wait for all work that the other users have been given so far.
  void hand_over(Streams& streams, StreamId stream, Handover handover);
  /// The first half of hand_over(): marks the end of all users' work so far.
  void record_ends(Streams& streams);
  /// The second half: makes later work on `stream` wait for these ends.
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
