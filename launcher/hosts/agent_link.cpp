#include "launcher/hosts/agent_link.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <system_error>

#include "base/error.h"
#include "base/printable.h"
#include "launcher/heartbeat.h"

namespace zerorun::launcher {
namespace {

using std::chrono::milliseconds;

// At most this many bytes of output may be sent without the launcher's confirmation. The launcher confirms
// bytes when it has printed them. So a stalled terminal holds up the ranks, but never the heartbeats.
constexpr size_t kMostUntaken = 1 << 20;

// The frame's payload, a number from 0 to `highest`.
int64_t number_in(const Frame& frame, int64_t highest) {
  int64_t value = -1;
  const char* end = frame.payload.data() + frame.payload.size();
  const auto [last, error] = std::from_chars(frame.payload.data(), end, value);
  if (error == std::errc() && last == end && value >= 0 && value <= highest) return value;
  throw Error("the launcher sent '" + printable(frame.payload) + "': expected a number from 0 to " +
              std::to_string(highest));
}

}  // namespace

void AgentLink::service() {
  if (lost_) return;
  const Clock::time_point now = Clock::now();
  if (now - last_service_ > kOwnPause) socket_.forgive_silence();
  last_service_ = now;
  beat();
  socket_.service();
  while (std::optional<Frame> frame = socket_.next()) handle(*frame);
  if (!word_) find_out_whether_lost();
}

void AgentLink::beat() {
  const Clock::time_point now = Clock::now();
  if (now - last_beat_ < kHeartbeat) return;
  last_beat_ = now;
  socket_.send(FrameType::heartbeat);
}

void AgentLink::handle(const Frame& frame) {
  if (frame.type == FrameType::end) {
    order_to_end_ = milliseconds(number_in(frame, kLongestGrace.count()));
  } else if (frame.type == FrameType::read) {
    untaken_ -= std::min<size_t>(untaken_, number_in(frame, std::numeric_limits<int64_t>::max()));
  } else if (frame.type == FrameType::again || frame.type == FrameType::finished) {
    word_ = frame.type;
  }
}

void AgentLink::find_out_whether_lost() {
  const bool silent = Clock::now() - socket_.last_heard() > kSilence;
  if (!socket_.is_closed() && !silent) return;
  lost_ = true;
  order_to_end_ = kLostGrace;
  std::fprintf(stderr, "zerorun: the launcher of this job %s: the ranks of this host end\n",
               silent ? "has been silent too long (it is stopped, or the network is down)" : "has ended");
  socket_.close();
}

std::optional<milliseconds> AgentLink::take_order_to_end() {
  return std::exchange(order_to_end_, std::nullopt);
}

std::string AgentLink::wait_for(FrameType type, Clock::time_point deadline, const std::string& purpose) {
  while (true) {
    std::vector<pollfd> entries;
    socket_.append_poll_entry(entries);
    ::poll(entries.data(), entries.size(), static_cast<int>(kControlTick.count()));
    beat();
    socket_.service();
    while (std::optional<Frame> frame = socket_.next()) {
      if (frame->type == type) return frame->payload;
      if (frame->type == FrameType::refusal) throw UserError(printable(frame->payload));
      if (frame->type == FrameType::end) throw Error("the launcher ended the job before its ranks started");
      handle(*frame);
      if (word_) throw Error("the launcher of this job did not wait for this host any more");
    }
    find_out_whether_lost();
    if (lost_) throw Error("the launcher of this job is lost: waited for " + purpose);
    if (Clock::now() >= deadline)
      throw Error("the launcher did not send " + purpose + " in time (--timeout)");
  }
}

void AgentLink::keep_alive() {
  beat();
  socket_.service();
}

void AgentLink::finish(const NodeResult& result) {
  socket_.send(FrameType::over, encode(result));
  while (!lost_ && !socket_.is_closed() && !word_) {
    std::vector<pollfd> entries;
    socket_.append_poll_entry(entries);
    ::poll(entries.data(), entries.size(), static_cast<int>(kControlTick.count()));
    beat();
    socket_.service();
    while (std::optional<Frame> frame = socket_.next()) handle(*frame);
    if (Clock::now() - socket_.last_heard() > kSilence) return;
  }
}

void AgentLink::wait_for_word(const NodeResult& result) {
  socket_.send(FrameType::over, encode(result));
  while (!word_ && !lost_) {
    std::vector<pollfd> entries;
    socket_.append_poll_entry(entries);
    ::poll(entries.data(), entries.size(), static_cast<int>(kControlTick.count()));
    service();
  }
}

void AgentLink::send_output(const RankOutput& output) {
  untaken_ += output.bytes.size();
  socket_.send(FrameType::output, encode(output));
}

bool AgentLink::takes_output() const {
  return lost_ || untaken_ < kMostUntaken;
}

}  // namespace zerorun::launcher
