// The ranks of a job as a grid of data x tensor x pipeline coordinates, with a communicator for each axis.
// Ranks that differ only in their data coordinate train the same parameters on different samples: ZeRO's
// slices live among them. Tensor coordinates change fastest, so tensor ranks are neighbours on one host, then
// data, then pipeline (DeepSpeed's order: runtime/pipe/topology.py, PipeModelDataParallelTopology).
//
// A plain value; copies share the communicators. Each communicator documents its own thread safety.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace zerorun {

enum class MeshAxis { data, tensor, pipeline };
inline constexpr int kMeshAxes = 3;
const char* name_of(MeshAxis axis);

/// The number of ranks along each axis. Data 0: the ranks that the other two leave.
struct MeshSizes {
  int data = 0;
  int tensor = 1;
  int pipeline = 1;

  bool operator==(const MeshSizes&) const = default;
  /// The same, with the data size that `world_size` ranks give. Throws UserError if the sizes do not multiply
  /// to `world_size`.
  MeshSizes resolved(int world_size) const;
};

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
/// Returns a text such as "data 1, tensor 0, pipeline 2", without the axes of size 1.
std::string describe(const MeshCoordinates& coordinates, const MeshSizes& sizes);

class Mesh {
 public:
  /// All ranks are data ranks.
  explicit Mesh(std::shared_ptr<Communicator> world);
  /// `world` has all ranks of the job. A collective. Throws UserError if the sizes do not fit.
  Mesh(std::shared_ptr<Communicator> world, const MeshSizes& sizes);

  const MeshSizes& sizes() const { return sizes_; }
  const MeshCoordinates& coordinates() const { return coordinates_; }
  Communicator& world() const { return *world_; }
  /// Among the ranks that differ from this one only in this coordinate. If these are all ranks: the world's.
  Communicator& along(MeshAxis axis) const { return *axes_[static_cast<size_t>(axis)]; }
  Communicator& data() const { return along(MeshAxis::data); }
  const std::shared_ptr<Communicator>& shared_world() const { return world_; }
  const std::shared_ptr<Communicator>& shared_data() const { return axes_[0]; }

 private:
  std::shared_ptr<Communicator> world_;
  MeshSizes sizes_;
  MeshCoordinates coordinates_;
  std::array<std::shared_ptr<Communicator>, kMeshAxes> axes_;
};

}  // namespace zerorun
