#include "device/stream_users.h"

namespace zerorun {

bool StreamUsers::has(StreamId stream) const {
  for (size_t i = 0; i < count_; ++i) {
    if (users_[i].stream == stream) return true;
  }
  return false;
}

void StreamUsers::add(StreamId stream) {
  if (users_.size() == count_) users_.emplace_back();
  users_[count_++].stream = stream;
}

void StreamUsers::hand_over(Streams& streams, StreamId stream, Handover handover) {
  for (size_t i = 0; i < count_; ++i) {
    if (users_[i].stream == stream) continue;
    streams.record(users_[i].end, users_[i].stream);
    streams.wait(users_[i].end, stream, handover);
  }
}

void StreamUsers::record_ends(Streams& streams) {
  for (size_t i = 0; i < count_; ++i) streams.record(users_[i].end, users_[i].stream);
}

void StreamUsers::wait_for_ends(Streams& streams, StreamId stream, Handover handover) const {
  for (size_t i = 0; i < count_; ++i) streams.wait(users_[i].end, stream, handover);
}

}  // namespace zerorun
