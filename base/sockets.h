// Waits of one TCP connection, each with a deadline. Blocks; any thread, one at a time for each socket.
#pragma once

#include <netdb.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace zerorun {

using SocketClock = std::chrono::steady_clock;

/// Waits until `events` of poll() are there. False at the deadline.
bool wait_for_socket(int fd, short events, SocketClock::time_point deadline);
/// Sends bytes that the socket's empty buffer takes at once. False if the connection is broken.
bool send_few(int fd, std::string_view bytes);
/// Receives exactly so many bytes. Absent if the connection ends or the deadline passes before.
std::optional<std::string> receive(int fd, size_t size, SocketClock::time_point deadline);
/// Connects `fd`, which then does not block. Returns 0, or the error.
int connect_socket(UniqueFd& fd, const addrinfo& address, SocketClock::time_point deadline);
/// Lets the system find out, within 35 s, that the other end's host has vanished.
void watch_other_end(int fd);

}  // namespace zerorun
