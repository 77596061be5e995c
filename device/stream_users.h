// The streams that use a piece of memory, and where each of them ends doing so: for whoever takes the memory
// over. Owned by what owns the memory; one thread at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "device/streams.h"

namespace zerorun {

class StreamUsers {
 public:
  bool has(StreamId stream) const;
  void add(StreamId stream);
  /// Nobody uses the memory any more. Their events stay for those to come.
  void clear() { count_ = 0; }

  /// What `stream` is given from now on comes after all that the other users have been given so far.
  void hand_over(Streams& streams, StreamId stream, Handover handover);
  /// The same in two steps: this is the end of all uses so far,
  void record_ends(Streams& streams);
  /// and `stream` comes after it.
  void wait_for_ends(Streams& streams, StreamId stream, Handover handover) const;

 private:
  struct User {
    StreamId stream;
    Event end;
  };

  std::vector<User> users_;  // the first count_ of them
  size_t count_ = 0;
};

}  // namespace zerorun
