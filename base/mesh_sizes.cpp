#include "base/mesh_sizes.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace zerorun {

const char* name_of(MeshAxis axis) {
  constexpr std::array kNames = {"data", "tensor", "pipeline"};
  return kNames[static_cast<size_t>(axis)];
}

int size_along(MeshAxis axis, const MeshSizes& sizes) {
  return axis == MeshAxis::data ? sizes.data : axis == MeshAxis::tensor ? sizes.tensor : sizes.pipeline;
}

MeshSizes MeshSizes::resolved(int world_size) const {
  if (data < 0 || tensor < 1 || pipeline < 1 || replicate < 1) {
    throw UserError("a mesh of data " + std::to_string(data) + ", tensor " + std::to_string(tensor) +
                    ", pipeline " + std::to_string(pipeline) +
                    (replicate == 1 ? "" : ", replicate " + std::to_string(replicate)) +
                    ": each size must be at least 1 (data 0: the ranks that the others leave)");
  }
  const int64_t model = int64_t{tensor} * pipeline;
  MeshSizes result = *this;
  if (data == 0) result.data = static_cast<int>(world_size / model);
  const bool may_fit = model <= world_size && result.data <= world_size;  // so that the product fits int64
  if (may_fit && result.data * model == world_size) {
    if (result.data % replicate == 0) return result;
    throw UserError("a mesh of " + describe(result) + ": the data ranks must be a multiple of replicate, " +
                    "the number of groups that each have all slices");
  }
  throw UserError("a mesh of " + describe(*this) + " does not fit " + std::to_string(world_size) +
                  (world_size == 1 ? " rank" : " ranks") +
                  ": the sizes must multiply to the number of ranks");
}

MeshSizes with_replicas_of(const MeshSizes& other, MeshSizes sizes) {
  if (sizes.replicate == 1) sizes.replicate = other.replicate;
  return sizes;
}

MeshCoordinates coordinates_of(int rank, const MeshSizes& sizes) {
  return {.data = rank / sizes.tensor % sizes.data,
          .tensor = rank % sizes.tensor,
          .pipeline = rank / sizes.tensor / sizes.data};
}

int rank_at(const MeshCoordinates& coordinates, const MeshSizes& sizes) {
  return (coordinates.pipeline * sizes.data + coordinates.data) * sizes.tensor + coordinates.tensor;
}

std::string describe(const MeshSizes& sizes) {
  return (sizes.data == 0 ? "" : "data " + std::to_string(sizes.data) + " x ") + "tensor " +
         std::to_string(sizes.tensor) + " x pipeline " + std::to_string(sizes.pipeline) +
         (sizes.replicate == 1 ? "" : ", data in " + std::to_string(sizes.replicate) + " replicas");
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

}  // namespace zerorun
