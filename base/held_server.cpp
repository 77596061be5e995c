#include "base/held_server.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/sockets.h"

namespace zerorun {
namespace {

// Connections that have not shown the token: strangers must not use up descriptors.
constexpr size_t kMostHeldGreetings = 64;
// One of a rank for each keeper of another host.
constexpr size_t kMostReaders = 4096;
// A rank that neither takes its answer nor ends its request for so long is stuck.
constexpr std::chrono::seconds kReaderPatience(60);
// What one reader gets before the others have their turn.
constexpr int kStepsInTurn = 8;
constexpr int64_t kBytesInStep = 1 << 20;

}  // namespace

HeldServer::HeldServer(ListeningSocket listening, const std::vector<HeldSlots>& files)
    : listening_(std::move(listening)), files_(files) {
  ::fcntl(listening_.fd.get(), F_SETFL, O_NONBLOCK);
}

void HeldServer::set_token(const std::string& token) {
  greetings_.clear();
  readers_.clear();
  token_.emplace(token);
}

void HeldServer::append_poll_entries(std::vector<pollfd>& entries) const {
  entries.push_back({listening_.fd.get(), POLLIN, 0});
  for (const Greeting& one : greetings_) entries.push_back({one.fd(), POLLIN, 0});
  for (const Reader& one : readers_)
    entries.push_back({one.fd.get(), static_cast<short>(one.is_answering() ? POLLOUT : POLLIN), 0});
}

void HeldServer::service() {
  accept_connections();
  service_greetings();
  std::erase_if(readers_, [&](Reader& one) { return !serve(one); });
}

void HeldServer::accept_connections() {
  while (true) {
    UniqueFd connection(::accept4(listening_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection.is_open()) return;
    if (!token_ || readers_.size() >= kMostReaders) continue;
    if (greetings_.size() >= kMostHeldGreetings) greetings_.pop_front();
    watch_other_end(connection.get());
    greetings_.emplace_back(std::move(connection), *token_, kHeldWords);
  }
}

void HeldServer::service_greetings() {
  for (auto one = greetings_.begin(); one != greetings_.end();) {
    const bool is_useful = one->service();
    if (is_useful && !one->is_done()) {
      ++one;
      continue;
    }
    if (is_useful) readers_.push_back({.fd = one->take()});
    one = greetings_.erase(one);
  }
}

// False once the connection is of no use.
bool HeldServer::serve(Reader& reader) const {
  for (int step = 0; step < kStepsInTurn; ++step) {
    const Step done = reader.is_answering() ? send_answer(reader) : receive_request(reader);
    if (done == Step::broken) return false;
    if (done == Step::waits) break;
    reader.moved = Clock::now();
  }
  const bool is_idle = !reader.is_answering() && reader.incoming.empty();
  return is_idle || Clock::now() - reader.moved < kReaderPatience;
}

HeldServer::Step HeldServer::receive_request(Reader& reader) const {
  std::array<char, sizeof(HeldRequest)> buffer;
  const ssize_t size =
      ::recv(reader.fd.get(), buffer.data(), buffer.size() - reader.incoming.size(), MSG_DONTWAIT);
  if (size < 0) return errno == EAGAIN || errno == EINTR ? Step::waits : Step::broken;
  if (size == 0) return Step::broken;
  reader.incoming.append(buffer.data(), static_cast<size_t>(size));
  if (reader.incoming.size() < sizeof(HeldRequest)) return Step::moved;
  HeldRequest request;
  std::memcpy(&request, reader.incoming.data(), sizeof request);
  reader.incoming.clear();
  begin_answer(reader, request);
  return Step::moved;
}

void HeldServer::begin_answer(Reader& reader, const HeldRequest& request) const {
  HeldAnswer answer{.bytes = -EINVAL};
  const bool is_there = request.rank >= 0 && request.rank < std::ssize(files_) && request.slot >= 0 &&
                        request.slot < std::ssize(HeldSlots()) && request.offset >= 0 && request.bytes >= 0;
  struct stat status {};
  if (is_there) {
    const UniqueFd& file = files_[static_cast<size_t>(request.rank)][static_cast<size_t>(request.slot)];
    if (::fstat(file.get(), &status) == 0) {
      const int64_t rest = std::max<int64_t>(0, int64_t{status.st_size} - request.offset);
      answer.bytes = std::min(request.bytes, rest);
      reader.file = file.get();
      reader.offset = request.offset;
      reader.left = answer.bytes;
    }
  }
  reader.head.assign(reinterpret_cast<const char*>(&answer), sizeof answer);
}

HeldServer::Step HeldServer::send_answer(Reader& reader) const {
  if (!reader.head.empty()) {
    const ssize_t size = ::send(reader.fd.get(), reader.head.data(), reader.head.size(),
                                MSG_NOSIGNAL | MSG_DONTWAIT | (reader.left > 0 ? MSG_MORE : 0));
    if (size < 0) return errno == EAGAIN || errno == EINTR ? Step::waits : Step::broken;
    reader.head.erase(0, static_cast<size_t>(size));
    return Step::moved;
  }
  off_t offset = reader.offset;
  const ssize_t size = ::sendfile(reader.fd.get(), reader.file, &offset,
                                  static_cast<size_t>(std::min(reader.left, kBytesInStep)));
  if (size < 0) return errno == EAGAIN || errno == EINTR ? Step::waits : Step::broken;
  if (size == 0) return Step::broken;  // the file has become shorter
  reader.offset += size;
  reader.left -= size;
  return Step::moved;
}

}  // namespace zerorun
