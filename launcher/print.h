// What subcommands print on standard output.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace zerorun::launcher {

inline void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

/// Bytes that are not UTF-8 are replaced.
inline void print_json(const nlohmann::ordered_json& json) {
  print(json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace zerorun::launcher
