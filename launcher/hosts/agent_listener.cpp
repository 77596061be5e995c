#include "launcher/hosts/agent_listener.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/route.h"
#include "launcher/heartbeat.h"

namespace zerorun::launcher {
namespace {

// The most connections that may be open before their agents have proved that they know the ticket
// (handshake.h), so strangers cannot use up descriptors.
constexpr size_t kMostGreetings = 128;
// A source with more of them than this is no host that starts its agent: when there is no room, its oldest
// connection makes room for another one. So strangers cannot keep agents out.
constexpr size_t kMostOfOneSource = 8;
// Agents answer within a round trip. So if many hosts connect at once, a connection that is older than this
// makes room, and further ones stay pending until then.
constexpr std::chrono::milliseconds kAnswerTime(250);
constexpr std::chrono::milliseconds kPauseWithoutRoom(10);
// The most connections that are accepted before those that are open are served again.
constexpr size_t kMostAtOnce = 32;
// If no descriptor is left, a connection stays pending, and poll() would return at once each time. So the
// listener waits this long before it accepts connections again.
constexpr std::chrono::milliseconds kPauseWithoutDescriptors(100);

// Addresses of which one host may have many are one source.
std::string source_of(const std::string& address) {
  if (is_loopback(address)) return "loopback";
  size_t groups = 0;  // the first four groups of an IPv6 address are its network
  for (size_t i = 0; i < address.size(); ++i) {
    if (address[i] == ':' && ++groups == 4) return address.substr(0, i);
  }
  return address;
}

}  // namespace

AgentListener::AgentListener(ListeningSocket listening, const Seal& ticket, Console& console)
    : listening_(std::move(listening)), ticket_(ticket), console_(console) {
  ::fcntl(fd(), F_SETFL, O_NONBLOCK);
}

void AgentListener::append_poll_entries(std::vector<pollfd>& entries) const {
  if (listening_.fd.is_open() && Clock::now() >= accepts_again_) entries.push_back({fd(), POLLIN, 0});
  for (const Greeting& one : greetings_) entries.push_back({one.greeting.fd(), POLLIN, 0});
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
  for (size_t accepted = 0; listening_.fd.is_open() && accepted < kMostAtOnce; ++accepted) {
    if (greetings_.size() >= kMostGreetings && !make_room()) {
      accepts_again_ = Clock::now() + kPauseWithoutRoom;
      return;
    }
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    auto* plain = reinterpret_cast<sockaddr*>(&address);
    UniqueFd connection(::accept4(fd(), plain, &size, SOCK_CLOEXEC));
    if (!connection.is_open()) {
      if (errno == EMFILE || errno == ENFILE) accepts_again_ = Clock::now() + kPauseWithoutDescriptors;
      return;
    }
    const std::string name = numeric_address(plain, size);
    greetings_.push_back(
        {AgentGreeting(std::move(connection), ticket_), name, source_of(name), Clock::now()});
  }
}

bool AgentListener::make_room() {
  std::map<std::string, size_t> counts;
  for (const Greeting& one : greetings_) ++counts[one.source];
  const auto largest = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  const bool crowds = largest->second > kMostOfOneSource;
  const bool is_old = Clock::now() - greetings_.front().since > kAnswerTime;
  if (!crowds && !is_old) return false;
  const auto victim = std::ranges::find_if(
      greetings_, [&](const Greeting& one) { return !crowds || one.source == largest->first; });
  greetings_.erase(victim);
  ++strangers_;
  return true;
}

void AgentListener::service_greetings() {
  for (auto one = greetings_.begin(); one != greetings_.end();) {
    const bool useful = one->greeting.service();
    if (useful && !one->greeting.is_done()) {
      ++one;
      continue;
    }
    if (useful) {
      greeted_.push_back({FrameSocket(one->greeting.take()), one->address});
    } else {
      ++strangers_;
    }
    one = greetings_.erase(one);
  }
}

}  // namespace zerorun::launcher
