#include "launcher/hosts/joined_launchers.h"

#include <thread>

#include "launcher/heartbeat.h"

namespace zerorun::launcher {
namespace {

// Launchers that have been told close their connections at once, unless they are stopped.
constexpr std::chrono::milliseconds kClosePatience(500);
constexpr std::chrono::milliseconds kCloseTick(5);

}  // namespace

JoinedLaunchers::~JoinedLaunchers() {
  tell(FrameType::finished);
  const Clock::time_point end = Clock::now() + kClosePatience;
  for (service(); !told_.empty() && Clock::now() < end; service()) std::this_thread::sleep_for(kCloseTick);
}

void JoinedLaunchers::service() {
  const bool beat = Clock::now() - last_beat_ >= kHeartbeat;
  if (beat) last_beat_ = Clock::now();
  for (std::list<FrameSocket>* sockets : {&waiting_, &told_}) {
    for (FrameSocket& socket : *sockets) {
      if (beat) socket.send(FrameType::heartbeat);
      socket.service();
      while (socket.next()) continue;
    }
    sockets->remove_if([](const FrameSocket& socket) { return socket.is_closed(); });
  }
}

void JoinedLaunchers::tell(FrameType word) {
  for (FrameSocket& socket : waiting_) socket.send(word);
  told_.splice(told_.end(), waiting_);
}

}  // namespace zerorun::launcher
