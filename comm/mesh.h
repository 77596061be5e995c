// The ranks of a job as a grid of data x tensor x pipeline coordinates (base/mesh_sizes.h), with a
// communicator for each axis. Ranks that differ only in their data coordinate train the same parameters on
// different samples: ZeRO's slices live among them. With MeshSizes::replicate the slices live among the data
// ranks of one replica, and the ranks that have the same slices sum their gradients once a step (HSDP).
//
// A plain value; copies share the communicators. Each communicator documents its own thread safety.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/mesh_sizes.h"
#include "comm/communicator.h"

namespace zerorun {

class Mesh {
 public:
  /// All ranks are data ranks, and there are no other groups. No collective.
  explicit Mesh(std::shared_ptr<Communicator> world);
  /// `world` has all ranks of the job. A collective. Throws UserError if the sizes do not fit.
  Mesh(std::shared_ptr<Communicator> world, const MeshSizes& sizes);

  const MeshSizes& sizes() const { return sizes_; }
  const MeshCoordinates& coordinates() const { return coordinates_; }
  Communicator& world() const { return *world_; }
  /// Among the ranks that differ from this one only in this coordinate. If these are all ranks: the world's.
  Communicator& along(MeshAxis axis) const;
  Communicator& data() const { return along(MeshAxis::data); }
  /// The data ranks among which states are sliced: all of them, or those of this rank's replica.
  Communicator& shards() const { return shards_ ? *shards_ : data(); }
  bool has_replicas() const { return sizes_.replicate > 1; }
  /// The data ranks that have this rank's slices. has_replicas() must be true.
  Communicator& replicas() const { return *replicas_; }
  // Groups of `ranks` consecutive ranks of shards(), which `ranks` divides. Making them is a collective.

  void make_near_groups(int ranks);
  /// The group of this rank in which partitioned parameters have second copies (zero/near_copies.h); null:
  /// none.
  Communicator* near() const { return near_.get(); }
  void make_summing_groups(int ranks);
  /// The group of this rank in which gradients are summed exactly before they are sent in 8 bits
  /// (zero/quantized_reductions.h); null: none.
  Communicator* summing() const { return summing_.get(); }
  /// The number of this rank's replica, from 0.
  int replica() const { return coordinates_.data / sizes_.shards(); }
  /// The world's communicator and all others, each once.
  std::vector<Communicator*> communicators() const;
  /// Whether along(axis) exists: a mesh without sizes has data ranks only.
  bool has(MeshAxis axis) const { return axes_[static_cast<size_t>(axis)] != nullptr; }
  /// Whether several ranks have equal data coordinates: there is more than one data group.
  bool has_groups() const { return sizes_.data < world_->world_size(); }

 private:
  std::shared_ptr<Communicator> world_;
  MeshSizes sizes_;
  MeshCoordinates coordinates_;
  std::array<std::shared_ptr<Communicator>, kMeshAxes> axes_;  // null: not made
  std::shared_ptr<Communicator> shards_;                       // null: those along the data axis
  std::shared_ptr<Communicator> near_;
  std::shared_ptr<Communicator> summing_;
  std::shared_ptr<Communicator> replicas_;  // null: there is one replica
};

}  // namespace zerorun
