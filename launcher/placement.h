// Which ranks of a job run on which host and slot. Plain values; any thread. Ranks are numbered host by host,
// in the order of the hostfile, and within a host in the order of slots.
#pragma once

#include <string>
#include <vector>

namespace zerorun::launcher {

/// A host of the job, and its slots that the job uses. On a host with GPUs a slot is the number of a GPU.
struct Node {
  std::string host;
  std::vector<int> slots;

  bool operator==(const Node&) const = default;
};

class Placement {
 public:
  /// Every node must have a slot.
  explicit Placement(std::vector<Node> nodes);

  const std::vector<Node>& nodes() const { return nodes_; }
  int world_size() const { return first_ranks_.back(); }
  /// The ranks of `node` are first_rank(node) to first_rank(node + 1) - 1.
  int first_rank(int node) const { return first_ranks_[node]; }
  /// LOCAL_WORLD_SIZE: how many ranks `node` has.
  int local_world_size(int node) const { return static_cast<int>(nodes_[node].slots.size()); }
  int node_of(int rank) const;
  /// LOCAL_RANK: the rank's number among the ranks of its node.
  int local_rank(int rank) const { return rank - first_rank(node_of(rank)); }
  int slot_of(int rank) const { return nodes_[node_of(rank)].slots[local_rank(rank)]; }

 private:
  std::vector<Node> nodes_;
  std::vector<int> first_ranks_;  // of each node; the last element is the world size
};

}  // namespace zerorun::launcher
