// The sizes of a grid of ranks, and a rank's coordinates in it: data x tensor x pipeline. Tensor coordinates
// change fastest, so tensor ranks are neighbours on one host, then data, then pipeline (DeepSpeed's order:
// runtime/pipe/topology.py, PipeModelDataParallelTopology). Plain values without LibTorch; any thread.
// comm/mesh.h has the communicators. With `replicate`, each group of consecutive data ranks, a replica, has
// all of the model's slices.
#pragma once

#include <string>

namespace zerorun {

enum class MeshAxis { data, tensor, pipeline };
inline constexpr int kMeshAxes = 3;
const char* name_of(MeshAxis axis);

/// The number of ranks along each axis. Data 0: the ranks that the other two leave.
struct MeshSizes {
  int data = 0;
  int tensor = 1;
  int pipeline = 1;
  int replicate = 1;  // the number of replicas among the data ranks

  bool operator==(const MeshSizes&) const = default;
  /// The number of data ranks of a replica, among which states are sliced. The sizes are resolved.
  int shards() const { return data / replicate; }
  /// The same, with the data size that `world_size` ranks give. Throws UserError if the sizes do not multiply
  /// to `world_size`, or if `replicate` does not divide the data ranks.
  MeshSizes resolved(int world_size) const;
};
/// `sizes`, with the replicas of `other` if `sizes` names none.
MeshSizes with_replicas_of(const MeshSizes& other, MeshSizes sizes);
/// The size of one axis.
int size_along(MeshAxis axis, const MeshSizes& sizes);

struct MeshCoordinates {
  int data = 0;
  int tensor = 0;
  int pipeline = 0;

  bool operator==(const MeshCoordinates&) const = default;
};

/// The coordinates of rank `rank` of a job. `sizes` is resolved.
MeshCoordinates coordinates_of(int rank, const MeshSizes& sizes);
/// The rank at `coordinates`. `sizes` is resolved.
int rank_at(const MeshCoordinates& coordinates, const MeshSizes& sizes);
/// Returns a text such as "data 2 x tensor 2 x pipeline 1"; without data if that is 0.
std::string describe(const MeshSizes& sizes);
/// Returns a text such as "data 1, tensor 0, pipeline 2", without the axes of size 1.
std::string describe(const MeshCoordinates& coordinates, const MeshSizes& sizes);

}  // namespace zerorun
