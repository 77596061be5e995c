#include "base/held_client.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/sockets.h"

namespace zerorun {
namespace {

constexpr std::chrono::milliseconds kPauseBetween(100);

void receive_into(int fd, std::span<std::byte> into, std::chrono::milliseconds patience) {
  while (!into.empty()) {
    if (!wait_for_socket(fd, POLLIN, SocketClock::now() + patience))
      throw Error("nothing has come from it for " + std::to_string(patience.count()) + " ms");
    const ssize_t size = ::recv(fd, into.data(), into.size(), 0);
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (size < 0) throw Error(std::strerror(errno));
    if (size == 0) throw Error("it has closed the connection");
    into = into.subspan(static_cast<size_t>(size));
  }
}

void send_from(int fd, std::span<const std::byte> bytes, std::chrono::milliseconds patience) {
  while (!bytes.empty()) {
    const ssize_t size = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size < 0 && errno != EINTR && errno != EAGAIN) throw Error(std::strerror(errno));
    if (size > 0) bytes = bytes.subspan(static_cast<size_t>(size));
    if (size < 0 && !wait_for_socket(fd, POLLOUT, SocketClock::now() + patience))
      throw Error("it takes nothing for " + std::to_string(patience.count()) + " ms");
  }
}

}  // namespace

HeldClient::HeldClient(HeldKeeper keeper, const std::string& token, HeldPatience patience)
    : keeper_(std::move(keeper)), token_(token), patience_(patience) {}

void HeldClient::connect() {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int unknown =
      ::getaddrinfo(keeper_.address.c_str(), std::to_string(keeper_.port).c_str(), &hints, &found);
  if (unknown != 0) throw Error(::gai_strerror(unknown));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  const auto deadline = SocketClock::now() + patience_.connect;
  std::string problem;
  do {
    const int error = connect_socket(socket_, *addresses, deadline);
    if (error == 0 && greet(socket_.get(), token_, kHeldWords, deadline)) {
      const int yes = 1;
      ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      return;
    }
    socket_.reset();
    problem = error == 0 ? "what listens there does not answer as this job's keeper" : std::strerror(error);
    if (error == ECONNREFUSED) break;  // it listens before the ranks start
    std::this_thread::sleep_for(kPauseBetween);
  } while (SocketClock::now() < deadline);
  throw Error(problem);
}

void HeldClient::send(const HeldRequest& request) {
  if (!socket_.is_open()) connect();
  if (!send_few(socket_.get(), {reinterpret_cast<const char*>(&request), sizeof request}))
    throw Error("it has closed the connection");
}

int64_t HeldClient::receive_answer(const HeldRequest& request) {
  HeldAnswer answer;
  receive_into(socket_.get(), std::as_writable_bytes(std::span(&answer, 1)), patience_.read);
  if (answer.bytes == -EINVAL || answer.bytes > request.bytes)
    throw Error("it has no memory of such a rank (" + std::to_string(request.rank) + " there, slot " +
                std::to_string(request.slot) + ")");
  return answer.bytes;
}

// Runs `action`, and turns its failure into that of this and all later calls.
template <typename Action>
auto HeldClient::attempt(const Action& action) {
  const std::lock_guard lock(mutex_);
  try {
    if (failure_.empty()) return action();
  } catch (const Error& error) {
    socket_.reset();
    failure_ = "the memory that host " + keeper_.host + " holds (--hold_every) cannot be reached at " +
               keeper_.address + ":" + std::to_string(keeper_.port) + ": " + error.what() +
               ": all hosts of the job must reach each other's ports, and no process of zerorun there may be "
               "stopped";
  }
  throw CommError(failure_);
}

int64_t HeldClient::read(int rank, int slot, std::span<std::byte> into, int64_t offset) {
  const HeldRequest request{
      .rank = rank, .slot = slot, .offset = offset, .bytes = static_cast<int64_t>(into.size())};
  return attempt([&] {
    send(request);
    const int64_t bytes = receive_answer(request);
    if (bytes < 0) throw Error(std::strerror(static_cast<int>(-bytes)));
    receive_into(socket_.get(), into.first(static_cast<size_t>(bytes)), patience_.read);
    return bytes;
  });
}

void HeldClient::write(int rank, int slot, std::span<const std::byte> bytes, int64_t offset) {
  const HeldRequest request{.verb = HeldVerb::write,
                            .rank = rank,
                            .slot = slot,
                            .offset = offset,
                            .bytes = static_cast<int64_t>(bytes.size())};
  attempt([&] {
    send(request);
    send_from(socket_.get(), bytes, patience_.read);
    if (const int64_t written = receive_answer(request); written < 0)
      throw Error(std::strerror(static_cast<int>(-written)));
  });
}

void HeldClient::reserve(int rank, int slot, int64_t bytes) {
  int64_t taken = 0;
  do {
    const HeldRequest request{
        .verb = HeldVerb::reserve, .rank = rank, .slot = slot, .offset = taken, .bytes = bytes - taken};
    const int64_t more = attempt([&] {
      send(request);
      return receive_answer(request);
    });
    if (more < 0 || (more == 0 && bytes > 0))
      throw UserError("host " + keeper_.host + " does not give " + std::to_string(bytes) +
                      " bytes for a copy: " + std::strerror(static_cast<int>(-more)));
    taken += more;
  } while (taken < bytes);
}

void HeldClient::disconnect() {
  const std::lock_guard lock(mutex_);
  socket_.reset();
}

int64_t HeldSlot::read(std::span<std::byte> into, int64_t offset) const {
  if (keeper != nullptr) return keeper->read(rank, slot, into, offset);
  const ssize_t size = ::pread(descriptor, into.data(), into.size(), offset);
  return size < 0 ? -errno : size;
}

}  // namespace zerorun
