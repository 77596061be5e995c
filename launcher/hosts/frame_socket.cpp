#include "launcher/hosts/frame_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/route.h"

namespace zerorun::launcher {
namespace {

constexpr size_t kHead = sizeof(uint32_t) + sizeof(uint8_t);
// In bytes; longer than any payload that an agent or a launcher sends. So a frame with a longer payload comes
// from another program.
constexpr uint32_t kLongestPayload = 1 << 26;
constexpr size_t kFrameReadSize = 1 << 16;
// Bounds read_some(), so that one fast sender cannot hold up all others.
constexpr int kReads = 16;

}  // namespace

FrameSocket::FrameSocket(UniqueFd fd) : fd_(std::move(fd)) {
  const int yes = 1;
  ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  ::fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
}

void FrameSocket::send(FrameType type, std::string_view payload) {
  if (is_closed()) return;
  const uint32_t size = payload.size();
  outgoing_.append(reinterpret_cast<const char*>(&size), sizeof size);
  outgoing_ += static_cast<char>(type);
  outgoing_.append(payload);
  write_some();
}

void FrameSocket::service() {
  write_some();
  read_some();
}

void FrameSocket::write_some() {
  while (fd_.is_open() && unsent() > 0) {
    const ssize_t size = ::send(fd_.get(), outgoing_.data() + sent_, unsent(), MSG_NOSIGNAL);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size < 0) return;  // read_some() finds the end, after the frames that have arrived
    sent_ += size;
  }
  outgoing_.clear();
  sent_ = 0;
}

void FrameSocket::read_some() {
  std::array<char, kFrameReadSize> buffer;
  for (int reads = 0; reads < kReads && fd_.is_open(); ++reads) {
    const ssize_t size = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) {
      fd_.reset();
      return;
    }
    last_heard_ = Clock::now();
    incoming_.erase(0, std::exchange(taken_, 0));
    incoming_.append(buffer.data(), size);
  }
}

std::optional<Frame> FrameSocket::next() {
  const std::string_view waiting = std::string_view(incoming_).substr(taken_);
  if (waiting.size() < kHead) return std::nullopt;
  uint32_t size = 0;
  std::memcpy(&size, waiting.data(), sizeof size);
  const auto type = static_cast<uint8_t>(waiting[sizeof size]);
  if (size > kLongestPayload || type > static_cast<uint8_t>(FrameType::heartbeat)) {
    incoming_.clear();
    taken_ = 0;
    fd_.reset();
    return std::nullopt;
  }
  if (waiting.size() < kHead + size) return std::nullopt;
  taken_ += kHead + size;
  return Frame{static_cast<FrameType>(type), std::string(waiting.substr(kHead, size))};
}

void FrameSocket::append_poll_entry(std::vector<pollfd>& entries) const {
  if (is_closed()) return;
  const auto events = static_cast<short>(POLLIN | (unsent() > 0 ? POLLOUT : 0));
  entries.push_back({fd_.get(), events, 0});
}

std::string FrameSocket::own_address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  return !is_closed() && ::getsockname(fd_.get(), plain, &size) == 0 ? numeric_address(plain, size) : "";
}

bool FrameSocket::is_acknowledged() const {
  tcp_info info{};
  socklen_t size = sizeof info;
  return !is_closed() && ::getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
         info.tcpi_unacked == 0;
}

}  // namespace zerorun::launcher
