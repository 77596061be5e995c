#include "engine/hidden_size.h"

#include <algorithm>
#include <map>
#include <unordered_set>

namespace zerorun {
namespace {

constexpr int64_t kCountedDimensions = 2;

}  // namespace

std::optional<int64_t> hidden_size_of(const Model& model) {
  std::map<int64_t, int64_t> occurrences;  // by size, ascending
  std::unordered_set<c10::TensorImpl*> seen;
  for (const auto& [name, parameter] : model.parameters) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    const int64_t dimensions = std::min(parameter.dim(), kCountedDimensions);
    for (int64_t dimension = 0; dimension < dimensions; ++dimension) {
      if (parameter.size(dimension) > 1) ++occurrences[parameter.size(dimension)];
    }
  }
  // Among equal counts max_element returns the first: the smallest size.
  const auto most = std::max_element(occurrences.begin(), occurrences.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == occurrences.end()) return std::nullopt;
  return most->first;
}

}  // namespace zerorun
