#include "comm/mesh.h"

#include <algorithm>
#include <map>
#include <string>
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

// " at tensor 1, pipeline 0": the coordinates along the other axes.
std::string place_beside(MeshAxis axis, const MeshCoordinates& coordinates, const MeshSizes& sizes) {
  MeshSizes others = sizes;
  (axis == MeshAxis::data ? others.data : axis == MeshAxis::tensor ? others.tensor : others.pipeline) = 1;
  const std::string place = describe(coordinates, others);
  return place.empty() ? "" : " at " + place;
}

// "data group at tensor 1, pipeline 0"
std::string name_of_group(MeshAxis axis, const MeshCoordinates& coordinates, const MeshSizes& sizes) {
  return std::string(name_of(axis)) + " group" + place_beside(axis, coordinates, sizes);
}

// Groups of the ranks that have the same `key`, by their first ranks. `name`: of a group, by its first rank's
// coordinates.
template <typename KeyOf, typename NameOf>
std::vector<RankGroup> groups_by(const MeshSizes& sizes, int world_size, const KeyOf& key,
                                 const NameOf& name) {
  std::map<int, RankGroup> groups;  // by their first rank
  for (int rank = 0; rank < world_size; ++rank) {
    const MeshCoordinates coordinates = coordinates_of(rank, sizes);
    RankGroup& group = groups[rank_at(key(coordinates), sizes)];
    if (group.ranks.empty()) group.name = name(coordinates);
    group.ranks.push_back(rank);
  }
  std::vector<RankGroup> in_order;
  for (auto& [first, group] : groups) in_order.push_back(std::move(group));
  return in_order;
}

std::vector<RankGroup> groups_along(MeshAxis axis, const MeshSizes& sizes, int world_size) {
  return groups_by(
      sizes, world_size, [&](const MeshCoordinates& of) { return without(axis, of); },
      [&](const MeshCoordinates& of) { return name_of_group(axis, of, sizes); });
}

// "shard group of replica 1 at tensor 0, pipeline 1"
std::vector<RankGroup> shard_groups(const MeshSizes& sizes, int world_size) {
  auto first = [&](MeshCoordinates of) {
    of.data -= of.data % sizes.shards();
    return of;
  };
  return groups_by(sizes, world_size, first, [&](const MeshCoordinates& of) {
    return "shard group of replica " + std::to_string(of.data / sizes.shards()) +
           place_beside(MeshAxis::data, of, sizes);
  });
}

// "replica group of shard 0 at tensor 0, pipeline 1"
std::vector<RankGroup> replica_groups(const MeshSizes& sizes, int world_size) {
  auto first = [&](MeshCoordinates of) {
    of.data %= sizes.shards();
    return of;
  };
  return groups_by(sizes, world_size, first, [&](const MeshCoordinates& of) {
    return "replica group of shard " + std::to_string(of.data % sizes.shards()) +
           place_beside(MeshAxis::data, of, sizes);
  });
}

std::vector<RankGroup> consecutive_groups(int world_size, int ranks, const std::string& name) {
  std::vector<RankGroup> groups;
  for (int rank = 0; rank < world_size; ++rank) {
    if (rank % ranks == 0) groups.push_back({.name = name + std::to_string(rank / ranks), .ranks = {}});
    groups.back().ranks.push_back(rank);
  }
  return groups;
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
  if (!has_replicas()) return;
  shards_ = world_->split(shard_groups(sizes_, ranks));
  replicas_ = world_->split(replica_groups(sizes_, ranks));
}

void Mesh::make_near_groups(int ranks) {
  near_ = shards().split(consecutive_groups(shards().world_size(), ranks, "hpZ group "));
}

void Mesh::make_summing_groups(int ranks) {
  summing_ = shards().split(consecutive_groups(shards().world_size(), ranks, "qgZ group "));
}

std::vector<Communicator*> Mesh::communicators() const {
  std::vector<Communicator*> all{world_.get()};
  for (const auto* each : {&axes_[0], &axes_[1], &axes_[2], &shards_, &replicas_, &near_, &summing_}) {
    if (*each && std::ranges::count(all, each->get()) == 0) all.push_back(each->get());
  }
  return all;
}

Communicator& Mesh::along(MeshAxis axis) const {
  const auto& communicator = axes_[static_cast<size_t>(axis)];
  ZR_CHECK(communicator, std::string("a mesh without sizes has no ") + name_of(axis) + " groups");
  return *communicator;
}

}  // namespace zerorun
