// The two ends of a TCP connection within a test.
#pragma once

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <utility>

#include "base/listening.h"

namespace zerorun::testing {

inline std::pair<UniqueFd, UniqueFd> connected() {
  const ListeningSocket listening = listen_on("127.0.0.1", 0);
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(listening.fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  return {std::move(client), UniqueFd(::accept4(listening.fd.get(), nullptr, nullptr, SOCK_CLOEXEC))};
}

}  // namespace zerorun::testing
