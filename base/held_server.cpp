#include "base/held_server.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/memory_limits.h"
#include "base/sockets.h"

namespace zerorun {
namespace {

// Connections that have not shown the token: strangers must not use up descriptors.
constexpr size_t kMostHeldGreetings = 64;
// One of a rank for each keeper of another host.
constexpr size_t kMostReaders = 4096;
// A rank that neither takes its answer nor ends its request for so long is stuck.
constexpr std::chrono::seconds kReaderPatience(60);
// When the process has no descriptor left, no connection is accepted for so long.
constexpr std::chrono::milliseconds kPauseWithoutRoom(200);
// What one reader gets before the others have their turn.
constexpr int kStepsInTurn = 8;
constexpr int64_t kBytesInStep = 1 << 20;
constexpr int64_t kReservedAtOnce = 256 << 20;
// So that no sum of two of them overflows.
constexpr int64_t kLargestFile = int64_t{1} << 60;

}  // namespace

HeldServer::HeldServer(ListeningSocket listening, const std::vector<HeldSlots>& files,
                       const std::vector<HeldSlots>& copies)
    : listening_(std::move(listening)), files_(files), copies_(copies), buffer_(kBytesInStep, '\0') {
  ::fcntl(listening_.fd.get(), F_SETFL, O_NONBLOCK);
}

void HeldServer::set_token(const std::string& token) {
  greetings_.clear();
  readers_.clear();
  token_.emplace(token);
}

void HeldServer::append_poll_entries(std::vector<pollfd>& entries) const {
  if (Clock::now() >= accepts_again_) entries.push_back({listening_.fd.get(), POLLIN, 0});
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
    if (!connection.is_open()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
        accepts_again_ = Clock::now() + kPauseWithoutRoom;
      return;
    }
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
bool HeldServer::serve(Reader& reader) {
  for (int step = 0; step < kStepsInTurn; ++step) {
    const Step done = reader.is_answering()   ? send_answer(reader)
                      : reader.to_receive > 0 ? receive_bytes(reader)
                                              : receive_request(reader);
    if (done == Step::broken) return false;
    if (done == Step::waits) break;
    reader.moved = Clock::now();
  }
  const bool is_idle = !reader.is_answering() && reader.incoming.empty() && reader.to_receive == 0;
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
  begin(reader, request);
  return Step::moved;
}

// -1 if there is none.
int HeldServer::file_of(const HeldRequest& request) const {
  const bool is_copy = request.slot >= kOwnSlots;
  const std::vector<HeldSlots>& files = is_copy ? copies_ : files_;
  const bool is_there = request.rank >= 0 && request.rank < std::ssize(files) && request.slot >= 0 &&
                        request.slot < kAllSlots && request.offset >= 0 && request.bytes >= 0 &&
                        request.offset <= kLargestFile && request.bytes <= kLargestFile &&
                        (is_copy || request.verb == HeldVerb::read);
  if (!is_there) return -1;
  return files[static_cast<size_t>(request.rank)][static_cast<size_t>(request.slot % kOwnSlots)].get();
}

void HeldServer::begin(Reader& reader, const HeldRequest& request) const {
  HeldAnswer answer{.bytes = -EINVAL};
  reader.file = file_of(request);
  reader.offset = request.offset;
  struct stat status {};
  if (reader.file >= 0 && request.verb == HeldVerb::read && ::fstat(reader.file, &status) == 0) {
    answer.bytes = std::clamp<int64_t>(int64_t{status.st_size} - request.offset, 0, request.bytes);
    reader.to_send = answer.bytes;
  } else if (reader.file >= 0 && request.verb == HeldVerb::reserve) {
    answer.bytes = reserve(reader.file, request);
  } else if (reader.file >= 0 && request.verb == HeldVerb::write && request.bytes > 0) {
    reader.to_receive = request.bytes;
    reader.answer.bytes = request.bytes;
    return;
  }
  reader.head.assign(reinterpret_cast<const char*>(&answer), sizeof answer);
}

// Returns how many bytes it has taken: at most kReservedAtOnce, since nobody else is served meanwhile.
int64_t HeldServer::reserve(int file, const HeldRequest& request) {
  if (request.bytes == 0) return ::ftruncate(file, request.offset) == 0 ? 0 : -errno;
  struct stat status {};
  if (::fstat(file, &status) != 0) return -errno;
  // More than is available the system would not refuse, but kill processes.
  if (request.offset + request.bytes - 512 * int64_t{status.st_blocks} > available_memory()) return -ENOMEM;
  const int64_t taken = std::min(request.bytes, kReservedAtOnce);
  return ::fallocate(file, 0, request.offset, taken) == 0 ? taken : -errno;
}

HeldServer::Step HeldServer::receive_bytes(Reader& reader) {
  const auto wanted = static_cast<size_t>(std::min(reader.to_receive, kBytesInStep));
  const ssize_t size = ::recv(reader.fd.get(), buffer_.data(), wanted, MSG_DONTWAIT);
  if (size < 0) return errno == EAGAIN || errno == EINTR ? Step::waits : Step::broken;
  if (size == 0) return Step::broken;
  for (ssize_t done = 0; done < size && reader.answer.bytes >= 0;) {
    const ssize_t written =
        ::pwrite(reader.file, buffer_.data() + done, static_cast<size_t>(size - done), reader.offset + done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) reader.answer.bytes = -(written < 0 ? errno : ENOSPC);
    done += written;
  }
  reader.offset += size;
  reader.to_receive -= size;
  if (reader.to_receive == 0)
    reader.head.assign(reinterpret_cast<const char*>(&reader.answer), sizeof reader.answer);
  return Step::moved;
}

HeldServer::Step HeldServer::send_answer(Reader& reader) const {
  if (!reader.head.empty()) {
    const ssize_t size = ::send(reader.fd.get(), reader.head.data(), reader.head.size(),
                                MSG_NOSIGNAL | MSG_DONTWAIT | (reader.to_send > 0 ? MSG_MORE : 0));
    if (size < 0) return errno == EAGAIN || errno == EINTR ? Step::waits : Step::broken;
    reader.head.erase(0, static_cast<size_t>(size));
    return Step::moved;
  }
  off_t offset = reader.offset;
  const ssize_t size = ::sendfile(reader.fd.get(), reader.file, &offset,
                                  static_cast<size_t>(std::min(reader.to_send, kBytesInStep)));
  if (size < 0) return errno == EAGAIN || errno == EINTR ? Step::waits : Step::broken;
  if (size == 0) return Step::broken;  // the file has become shorter
  reader.offset += size;
  reader.to_send -= size;
  return Step::moved;
}

}  // namespace zerorun
