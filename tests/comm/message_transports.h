// The transports of messages between processes.
#pragma once

#include <catch2/catch.hpp>
#include <functional>
#include <string>

namespace zerorun::testing {

inline constexpr const char* kMessageTransports[] = {"gloo", "shm"};

inline void for_both(const std::function<void(const std::string& transport)>& test) {
  for (const char* transport : kMessageTransports) {
    INFO(transport);
    test(transport);
  }
}

}  // namespace zerorun::testing
