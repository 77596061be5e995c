#include "config/compare.h"

#include <algorithm>

#include "config/effective.h"

namespace zerorun {

std::vector<Difference> compare_settings(const Settings& first, const Settings& second) {
  const auto a = effective_settings(first);
  const auto b = effective_settings(second);
  const auto at = [](const std::vector<EffectiveSetting>& settings, const KeyFact* fact) {
    const auto found = std::ranges::find(settings, fact, &EffectiveSetting::fact);
    return found == settings.end() ? EffectiveSetting() : *found;
  };
  std::vector<Difference> differences;
  for (const KeyFact* fact : key_facts()) {
    const EffectiveSetting in_a = at(a, fact);
    const EffectiveSetting in_b = at(b, fact);
    if (in_a.value == in_b.value) continue;
    differences.push_back({std::string(fact->path), in_a.value, in_b.value, in_a.origin, in_b.origin});
  }
  return differences;
}

}  // namespace zerorun
