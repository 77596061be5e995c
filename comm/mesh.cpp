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

int size_along(MeshAxis axis, const MeshSizes& sizes) {
  return axis == MeshAxis::data ? sizes.data : axis == MeshAxis::tensor ? sizes.tensor : sizes.pipeline;
}

}  // namespace

const char* name_of(MeshAxis axis) {
  constexpr std::array kNames = {"data", "tensor", "pipeline"};
  return kNames[static_cast<size_t>(axis)];
}

MeshSizes MeshSizes::resolved(int world_size) const {
  const std::string ranks = std::to_string(world_size) + (world_size == 1 ? " rank" : " ranks");
  if (data < 0 || tensor < 1 || pipeline < 1) {
    throw UserError("a mesh of data " + std::to_string(data) + ", tensor " + std::to_string(tensor) +
                    ", pipeline " + std::to_string(pipeline) +
                    ": each size must be at least 1 (data 0: the " + "ranks that the others leave)");
  }
  const int64_t model = int64_t{tensor} * pipeline;
  MeshSizes result = *this;
  if (data == 0 && world_size % model == 0) result.data = static_cast<int>(world_size / model);
  if (result.data * model == world_size) return result;
  throw UserError("a mesh of " + (data == 0 ? "" : "data " + std::to_string(data) + " x ") + "tensor " +
                  std::to_string(tensor) + " x pipeline " + std::to_string(pipeline) + " does not fit " +
                  ranks + ": the sizes must multiply to the number of ranks");
}

MeshCoordinates coordinates_of(int rank, const MeshSizes& sizes) {
  return {.data = rank / sizes.tensor % sizes.data,
          .tensor = rank % sizes.tensor,
          .pipeline = rank / sizes.tensor / sizes.data};
}

int rank_at(const MeshCoordinates& coordinates, const MeshSizes& sizes) {
  return (coordinates.pipeline * sizes.data + coordinates.data) * sizes.tensor + coordinates.tensor;
}

std::string describe(const MeshCoordinates& coordinates, const MeshSizes& sizes) {
  std::string text;
  const auto add = [&](MeshAxis axis, int value) {
    if (size_along(axis, sizes) == 1) return;
    text += (text.empty() ? "" : ", ") + std::string(name_of(axis)) + " " + std::to_string(value);
  };
  add(MeshAxis::data, coordinates.data);
  add(MeshAxis::tensor, coordinates.tensor);
  add(MeshAxis::pipeline, coordinates.pipeline);
  return text;
}

Mesh::Mesh(std::shared_ptr<Communicator> world) : Mesh(std::move(world), MeshSizes{}) {}

Mesh::Mesh(std::shared_ptr<Communicator> world, const MeshSizes& sizes)
    : world_(std::move(world)),
      sizes_(sizes.resolved(world_->world_size())),
      coordinates_(coordinates_of(world_->rank(), sizes_)) {
  for (const MeshAxis axis : {MeshAxis::data, MeshAxis::tensor, MeshAxis::pipeline}) {
    const bool whole = size_along(axis, sizes_) == world_->world_size();
    axes_[static_cast<size_t>(axis)] =
        whole ? world_ : world_->split(groups_along(axis, sizes_, world_->world_size()));
  }
}

}  // namespace zerorun
