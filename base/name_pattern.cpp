#include "base/name_pattern.h"

namespace zerorun {
namespace {

// Takes the part before the first dot from `name`.
std::string_view take_part(std::string_view& name) {
  const size_t dot = name.find('.');
  const std::string_view part = name.substr(0, dot);
  name.remove_prefix(dot == std::string_view::npos ? name.size() : dot + 1);
  return part;
}

}  // namespace

bool matches_name(std::string_view pattern, std::string_view name) {
  while (!pattern.empty() && !name.empty()) {
    const std::string_view wanted = take_part(pattern);
    if (wanted != take_part(name) && wanted != "*") return false;
  }
  return pattern.empty() && name.empty();
}

}  // namespace zerorun
