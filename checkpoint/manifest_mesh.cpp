#include "checkpoint/manifest_mesh.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/json_members.h"

namespace zerorun::checkpoint {
namespace {

using nlohmann::json;

// Throws UserError unless the parts are one for each tensor rank, and have each index of the dimension once.
void check_split(const SavedSplit& split, const SavedParameter& parameter, int ranks,
                 const std::string& where) {
  if (static_cast<int>(split.parts.size()) != ranks)
    throw UserError(where + ": expected a part for each of " + std::to_string(ranks) + " tensor ranks");
  std::vector<SavedSplit::Interval> intervals;
  for (const auto& part : split.parts) intervals.insert(intervals.end(), part.begin(), part.end());
  std::ranges::sort(intervals, {}, [](const auto& one) { return std::pair(one.begin, one.numel); });
  const auto dim = static_cast<size_t>(split.dim);
  if (dim >= parameter.shape.size()) throw UserError(where + ": the parameter has no such dimension");
  int64_t covered = 0;
  for (const auto& [begin, numel] : intervals) {
    const auto at = " index " + std::to_string(std::min(begin, covered));
    if (begin < 0 || numel < 0 || numel > parameter.shape[dim] - begin)
      throw UserError(where + ": a part goes beyond the dimension's " + std::to_string(parameter.shape[dim]) +
                      " indices");
    if (begin < covered) throw UserError(where + ":" + at + " is in two parts");
    if (begin > covered) throw UserError(where + ":" + at + " is in no part");
    covered += numel;
  }
  if (covered != parameter.shape[dim])
    throw UserError(where + ": index " + std::to_string(covered) + " is in no part");
}

}  // namespace

json mesh_member(const Manifest& manifest) {
  json splits = json::object();
  for (const auto& [name, parameter] : manifest.parameters) {
    if (!parameter.split) continue;
    json parts = json::array();
    for (const auto& intervals : parameter.split->parts) {
      json part = json::array();
      for (const auto& [begin, numel] : intervals) part.push_back({begin, numel});
      parts.push_back(std::move(part));
    }
    splits[name] = {{"dim", parameter.split->dim}, {"parts", std::move(parts)}};
  }
  return {{"data", manifest.mesh->data},
          {"tensor", manifest.mesh->tensor},
          {"pipeline", manifest.mesh->pipeline},
          {"splits", std::move(splits)}};
}

void read_mesh_member(Manifest& manifest, const json& member, const std::string& place) {
  const std::string where = place + ": mesh";
  const Skippable none;
  Members mesh(member, where, none, "");
  constexpr int64_t kMost = 1 << 20;
  auto size = [&](const char* axis) { return static_cast<int>(std::min(mesh.count(axis), kMost)); };
  const MeshSizes sizes{.data = size("data"), .tensor = size("tensor"), .pipeline = size("pipeline")};
  try {
    manifest.mesh = sizes.resolved(manifest.world_size);
  } catch (const UserError& error) {
    throw UserError(where + ": " + error.what());
  }
  for (const auto& [name, value] : mesh.at("splits").items()) {
    const std::string of_split = where + ": split of " + name;
    const auto found = manifest.parameters.find(name);
    if (found == manifest.parameters.end()) throw UserError(of_split + ": there is no such parameter");
    Members members(value, of_split, none, "");
    SavedSplit split{.dim = members.count("dim"), .parts = {}};
    for (const json& part : members.at("parts")) {
      auto& intervals = split.parts.emplace_back();
      for (const auto& [begin, numel] : part.get<std::vector<std::pair<int64_t, int64_t>>>())
        intervals.push_back({begin, numel});
    }
    members.end();
    check_split(split, found->second, sizes.tensor, of_split);
    found->second.split = std::move(split);
  }
  mesh.end();
}

}  // namespace zerorun::checkpoint
