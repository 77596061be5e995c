#include "launcher/hosts/host_keepers.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/held_memory.h"
#include "base/listening.h"
#include "base/route.h"
#include "base/sockets.h"
#include "launcher/hosts/handshake.h"

namespace zerorun::launcher {
namespace {

constexpr size_t kTagLength = 16;
// Keepers end at once; one that is stopped ends when it continues.
constexpr std::chrono::milliseconds kKeeperEndPatience(1000);

}  // namespace

HostKeepers::HostKeepers(std::vector<Node> nodes, int every, Console& console)
    : nodes_(std::move(nodes)),
      every_(every),
      console_(console),
      ticket_text_(random_token()),
      ticket_(ticket_text_),
      listener_(listen_on("", 0), ticket_, console),
      keepers_(nodes_.size()) {}

HostKeepers::~HostKeepers() {
  end();
}

void HostKeepers::append_poll_entries(std::vector<pollfd>& entries) const {
  listener_.append_poll_entries(entries);
  for (const Newcomer& one : newcomers_) one.socket.append_poll_entry(entries);
  for (const Keeper& one : keepers_) {
    if (one.socket) one.socket->append_poll_entry(entries);
  }
}

void HostKeepers::service() {
  for (NewAgent& one : listener_.service()) {
    if (one.hello.node >= 0 && one.hello.node < std::ssize(keepers_))
      newcomers_.push_back({std::move(one.socket), one.hello.node, one.address});
  }
  std::erase_if(newcomers_, [&](Newcomer& one) { return takes(one) || one.socket.is_closed(); });
  for (size_t node = 0; node < keepers_.size(); ++node) {
    Keeper& keeper = keepers_[node];
    if (!keeper.socket) continue;
    keeper.socket->service();
    if (!keeper.socket->is_closed()) continue;
    keeper.socket.reset();
    tell_lost(static_cast<int>(node));
  }
}

void HostKeepers::tell_lost(int node) {
  const auto place = static_cast<size_t>(node);
  console_.notice(nodes_[place].host +
                  ": the memory that was held there (--hold_every) is lost: its keeper (process " +
                  std::to_string(keepers_[place].hello.pid) + ") has ended");
}

// Whether the newcomer has said what it holds; then it has its place, or is told to end.
bool HostKeepers::takes(Newcomer& newcomer) {
  newcomer.socket.service();
  const std::optional<Frame> frame = newcomer.socket.next();
  if (!frame) return false;
  Keeper& keeper = keepers_[static_cast<size_t>(newcomer.node)];
  try {
    auto hello = decode<KeeperHello>(frame->payload);
    if (frame->type == FrameType::keeper && !hello.tag.empty() && hello.tag == keeper.awaited) {
      if (keeper.socket) {  // its host has vanished without a word, and is back
        keeper.socket->send(FrameType::end);
        tell_lost(newcomer.node);
      }
      keeper.socket = std::move(newcomer.socket);
      keeper.hello = std::move(hello);
      keeper.address = newcomer.address;
      return true;
    }
  } catch (const Error& error) {
    console_.notice("a connection from " + newcomer.address + " is dropped: " + error.what());
  }
  newcomer.socket.send(FrameType::refusal);
  return true;
}

KeeperOrder HostKeepers::order_for(int node) {
  Keeper& keeper = keepers_[static_cast<size_t>(node)];
  keeper.awaited = random_token().substr(0, kTagLength);
  return {.port = listener_.port(),
          .ticket = ticket_text_,
          .tag = keeper.awaited,
          .there = keeper.socket ? keeper.hello.place : ""};
}

bool HostKeepers::is_ready(int node, const std::string& tag) const {
  const Keeper& keeper = keepers_[static_cast<size_t>(node)];
  return keeper.socket && (tag.empty() || tag == keeper.hello.tag);
}

void HostKeepers::tell_token(const std::string& token) {
  for (Keeper& keeper : keepers_) {
    if (keeper.socket) keeper.socket->send(FrameType::token, token);
  }
}

// How ranks of node `reader` reach the keeper of `node`. The keeper of this host may have connected over a
// loopback address: then it is the address by which the reader's own keeper has reached this host.
std::string HostKeepers::address_for(int reader, int node) const {
  const std::string& address = keepers_[static_cast<size_t>(node)].address;
  if (!is_loopback(address)) return address;
  const std::optional<FrameSocket>& socket = keepers_[static_cast<size_t>(reader)].socket;
  const std::string own = socket ? socket->own_address() : "";
  return own.empty() ? address : own;
}

std::string HostKeepers::text_for(int node) {
  std::string text = std::to_string(every_);
  int first_rank = 0;
  for (int other = 0; other < std::ssize(nodes_); ++other) {
    const Keeper& keeper = keepers_[static_cast<size_t>(other)];
    const int ranks = static_cast<int>(nodes_[static_cast<size_t>(other)].slots.size());
    if (keeper.hello.place.empty()) {
      if (node == 0)
        console_.notice("--hold_every has no effect: " + nodes_[static_cast<size_t>(other)].host +
                        " has no memory files for so many ranks");
      return {};
    }
    text += " " + (other == node ? keeper.hello.place
                                 : keeper_place({.host = nodes_[static_cast<size_t>(other)].host,
                                                 .address = address_for(node, other),
                                                 .port = keeper.hello.port,
                                                 .first_rank = first_rank,
                                                 .ranks = ranks}));
    first_rank += ranks;
  }
  return text;
}

std::optional<pid_t> HostKeepers::pid_of(int node) const {
  const Keeper& keeper = keepers_[static_cast<size_t>(node)];
  if (!keeper.socket) return std::nullopt;
  return keeper.hello.pid;
}

void HostKeepers::end() {
  newcomers_.clear();
  for (Keeper& keeper : keepers_) {
    keeper.awaited.clear();
    if (keeper.socket) keeper.socket->send(FrameType::end);
  }
  const auto deadline = SocketClock::now() + kKeeperEndPatience;
  for (Keeper& keeper : keepers_) {
    while (keeper.socket && !keeper.socket->is_closed()) {
      std::vector<pollfd> entries;
      keeper.socket->append_poll_entry(entries);
      if (!wait_for_socket(entries.front().fd, POLLIN, deadline)) break;
      keeper.socket->service();
    }
    keeper.socket.reset();
    keeper.hello = {};
  }
}

}  // namespace zerorun::launcher
