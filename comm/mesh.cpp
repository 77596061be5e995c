#include "comm/mesh.h"

#include <map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace zerorun {
namespace {

// The same coordinates on `axis` 0: equal for all ranks of a group along `axis`.
MeshCoordinates without(MeshAxis axis, MeshCoordinates coordinates) {
  (axis == MeshAxis::data     ? coordinates.data
   : axis == MeshAxis::tensor ? coordinates.tensor
                              : coordinates.pipeline) = 0;
  return coordinates;
}

// "data group at tensor 1, pipeline 0"
std::string name_of_group(MeshAxis axis, const MeshCoordinates& coordinates, const MeshSizes& sizes) {
  MeshSizes others = sizes;
  (axis == MeshAxis::data ? others.data : axis == MeshAxis::tensor ? others.tensor : others.pipeline) = 1;
  const std::string place = describe(coordinates, others);
  return std::string(name_of(axis)) + " group" + (place.empty() ? "" : " at " + place);
}

std::vector<RankGroup> groups_along(MeshAxis axis, const MeshSizes& sizes, int world_size) {
  std::map<int, RankGroup> groups;  // by their first rank
  for (int rank = 0; rank < world_size; ++rank) {
    const MeshCoordinates coordinates = coordinates_of(rank, sizes);
    RankGroup& group = groups[rank_at(without(axis, coordinates), sizes)];
    if (group.ranks.empty()) group.name = name_of_group(axis, coordinates, sizes);
    group.ranks.push_back(rank);
  }
  std::vector<RankGroup> in_order;
  for (auto& [first, group] : groups) in_order.push_back(std::move(group));
  return in_order;
}

}  // namespace

Mesh::Mesh(std::shared_ptr<Communicator> world)
    : world_(std::move(world)),
      sizes_(MeshSizes().resolved(world_->world_size())),
      coordinates_(coordinates_of(world_->rank(), sizes_)),
      axes_({world_}) {}

Mesh::Mesh(std::shared_ptr<Communicator> world, const MeshSizes& sizes)
    : world_(std::move(world)),
      sizes_(sizes.resolved(world_->world_size())),
      coordinates_(coordinates_of(world_->rank(), sizes_)) {
  const int ranks = world_->world_size();
  for (const MeshAxis axis : {MeshAxis::data, MeshAxis::tensor, MeshAxis::pipeline}) {
    const bool whole = size_along(axis, sizes_) == ranks;
    axes_[static_cast<size_t>(axis)] = whole ? world_ : world_->split(groups_along(axis, sizes_, ranks));
  }
}

Communicator& Mesh::along(MeshAxis axis) const {
  const auto& communicator = axes_[static_cast<size_t>(axis)];
  ZR_CHECK(communicator, std::string("a mesh without sizes has no ") + name_of(axis) + " groups");
  return *communicator;
}

}  // namespace zerorun
