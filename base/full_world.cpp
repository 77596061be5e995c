#include "base/full_world.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace zerorun {
namespace {

std::optional<int> number_in(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return std::nullopt;
  const std::string_view text(value);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number > 0) return number;
  throw UserError(std::string(variable) + ": expected a number of ranks, found '" + std::string(text) +
                  "': unset it, zerorun sets it for its ranks");
}

}  // namespace

std::optional<int> full_world_of(int world_size) {
  const std::optional<int> full = number_in(kFullWorldVariable);
  if (!full || number_in("WORLD_SIZE") != world_size) return std::nullopt;
  return full;
}

}  // namespace zerorun
