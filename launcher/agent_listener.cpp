#include "launcher/agent_listener.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/route.h"
#include "launcher/heartbeat.h"

namespace zerorun {
namespace {

// The most connections that may be open before their agents have proved that they know the ticket
// (handshake.h). Further ones are closed at once, so strangers cannot use up descriptors.
constexpr size_t kMostGreetings = 128;
// If no descriptor is left, a connection stays pending, and poll() would return at once each time. So the
// listener waits this long before it accepts connections again.
constexpr std::chrono::milliseconds kPauseWithoutDescriptors(100);

}  // namespace

AgentListener::AgentListener(ListeningSocket listening, const Seal& ticket, Console& console)
    : listening_(std::move(listening)), ticket_(ticket), console_(console) {
  ::fcntl(fd(), F_SETFL, O_NONBLOCK);
}

void AgentListener::append_poll_entries(std::vector<pollfd>& entries) const {
  if (listening_.fd.is_open() && Clock::now() >= accepts_again_) entries.push_back({fd(), POLLIN, 0});
  for (const auto& [greeting, address] : greetings_) entries.push_back({greeting.fd(), POLLIN, 0});
  for (const Greeted& greeted : greeted_) greeted.socket.append_poll_entry(entries);
}

std::vector<NewAgent> AgentListener::service() {
  accept_connections();
  service_greetings();
  std::vector<NewAgent> agents;
  for (auto greeted = greeted_.begin(); greeted != greeted_.end();) {
    FrameSocket& socket = greeted->socket;
    socket.service();
    const std::optional<Frame> frame = socket.next();
    const bool silent = Clock::now() - socket.last_heard() > kSilence;
    if (!frame && !socket.is_closed() && !silent) {
      ++greeted;
      continue;
    }
    if (frame && frame->type == FrameType::hello) {
      try {
        auto hello = decode<AgentHello>(frame->payload);
        agents.push_back({std::move(socket), std::move(hello), greeted->address});
      } catch (const Error& error) {
        console_.notice("a connection from " + greeted->address + " is dropped: " + error.what());
      }
    }
    greeted = greeted_.erase(greeted);
  }
  return agents;
}

void AgentListener::close() {
  listening_.fd.reset();
  greetings_.clear();
  greeted_.clear();
}

void AgentListener::accept_connections() {
  while (listening_.fd.is_open()) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    auto* plain = reinterpret_cast<sockaddr*>(&address);
    UniqueFd connection(::accept4(fd(), plain, &size, SOCK_CLOEXEC));
    if (!connection.is_open()) {
      if (errno == EMFILE || errno == ENFILE) accepts_again_ = Clock::now() + kPauseWithoutDescriptors;
      return;
    }
    if (greetings_.size() >= kMostGreetings) continue;
    greetings_.emplace_back(AgentGreeting(std::move(connection), ticket_), numeric_address(plain, size));
  }
}

void AgentListener::service_greetings() {
  for (auto greeting = greetings_.begin(); greeting != greetings_.end();) {
    const bool useful = greeting->first.service();
    if (useful && !greeting->first.is_done()) {
      ++greeting;
      continue;
    }
    if (useful) greeted_.push_back({FrameSocket(greeting->first.take()), greeting->second});
    greeting = greetings_.erase(greeting);
  }
}

}  // namespace zerorun
