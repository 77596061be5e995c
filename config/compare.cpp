#include "config/compare.h"

#include <map>

#include "config/effective.h"

namespace zerorun {
namespace {

std::map<const KeyFact*, EffectiveSetting> by_fact(const Settings& settings) {
  std::map<const KeyFact*, EffectiveSetting> result;
  for (EffectiveSetting& effective : effective_settings(settings)) {
    const KeyFact* fact = effective.fact;
    result.emplace(fact, std::move(effective));
  }
  return result;
}

}  // namespace

std::vector<Difference> compare_settings(const Settings& first, const Settings& second) {
  const auto a = by_fact(first);
  const auto b = by_fact(second);
  std::vector<Difference> differences;
  for (const KeyFact* fact : key_facts()) {
    const auto in_a = a.find(fact);
    const auto in_b = b.find(fact);
    if (in_a == a.end() && in_b == b.end()) continue;
    Difference difference{std::string(fact->path), "", "", "", ""};
    if (in_a != a.end()) {
      difference.first = in_a->second.value;
      difference.first_origin = origin_of(in_a->second);
    }
    if (in_b != b.end()) {
      difference.second = in_b->second.value;
      difference.second_origin = origin_of(in_b->second);
    }
    if (difference.first != difference.second) differences.push_back(std::move(difference));
  }
  return differences;
}

}  // namespace zerorun
