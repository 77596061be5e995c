// What subcommands print on standard output.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "base/printable.h"

namespace zerorun::launcher {

inline void print_bytes(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

/// Names of files and variables may be part of the text: control characters in it become ?.
inline void print(const std::string& text) {
  print_bytes(printable(text, "\n\t"));
}

/// Bytes that are not UTF-8 are replaced; JSON escapes control characters.
inline void print_json(const nlohmann::ordered_json& json) {
  print_bytes(json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace zerorun::launcher
