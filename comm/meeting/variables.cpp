#include "comm/meeting/variables.h"

#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace zerorun {

Variables Variables::of_process() {
  return Variables([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (!value) return std::nullopt;
    return value;
  });
}

std::optional<std::string> Variables::find(const std::string& name) const {
  auto value = lookup_(name);
  if (value && value->empty()) return std::nullopt;
  return value;
}

int whole_number(const std::string& name, const std::string& text, int lowest, int highest) {
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < lowest || value > highest) {
    throw UserError("environment variable " + name + "=" + text + ": expected a whole number from " +
                    std::to_string(lowest) + " to " + std::to_string(highest));
  }
  return value;
}

}  // namespace zerorun
