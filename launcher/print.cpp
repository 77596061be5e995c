#include "launcher/print.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/printable.h"

namespace zerorun::launcher {

void print_bytes(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void print(const std::string& text) {
  print_bytes(printable(text, "\n\t"));
}

void print_json(const nlohmann::ordered_json& json) {
  print_bytes(json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace zerorun::launcher
