// Collectives among ranks. A Communicator is owned by one rank and used by one thread of it at a time; ranks issue
// the same collectives in the same order. Each collective returns a Work; until its wait() has returned, the tensors
// given to it belong to the communicator. Reductions are sums in rank order: the bits depend neither on bucket sizes
// nor on timing. Every wait has a deadline; a missed one throws CommError naming collective, label and missing ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace zerorun {

enum class Collective { reduce_scatter, all_gather, all_reduce, broadcast, barrier };
inline constexpr int kCollectives = 5;
const char* name_of(Collective collective);

/// A collective under way.
class Work {
 public:
  virtual ~Work() = default;
  /// Returns when the output is there and the input may be written again. Call it exactly once. Throws CommError.
  virtual void wait() = 0;
};

/// Algorithmic volume sent by one rank, in elements: (N-1)/N of the full tensor for a reduce-scatter or an
/// all-gather, 2(N-1)/N for an all-reduce, (N-1)/N for a broadcast.
class Volume {
 public:
  void add(Collective collective, int64_t numel, int world_size);
  double elements(Collective collective) const { return elements_[static_cast<int>(collective)]; }
  void reset() { elements_ = {}; }

 private:
  std::array<double, kCollectives> elements_{};
};

class Communicator {
 public:
  Communicator(int rank, int world_size, std::chrono::milliseconds timeout);
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// A zero-filled 1-D tensor of `numel` elements in the memory this communicator moves fastest, aligned to 64 bytes.
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype);

  // Tensors are 1-D and contiguous. `label` names what is moved ("bucket 3") in errors.

  /// output (numel / N) = sum over ranks of slice `rank` of their input. `output` may be that slice of `input` itself.
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, std::string label);
  /// Slice r of output = input of rank r. `input` may be slice `rank` of `output` itself.
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, std::string label);
  /// tensor = sum over ranks, in rank order.
  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor tensor, std::string label);
  [[nodiscard]] std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, std::string label);
  [[nodiscard]] std::unique_ptr<Work> barrier(std::string label);

  Volume& volume() { return volume_; }

 protected:
  virtual std::unique_ptr<Work> start_reduce_scatter(at::Tensor output, at::Tensor input, std::string label) = 0;
  virtual std::unique_ptr<Work> start_all_gather(at::Tensor output, at::Tensor input, std::string label) = 0;
  virtual std::unique_ptr<Work> start_all_reduce(at::Tensor tensor, std::string label) = 0;
  virtual std::unique_ptr<Work> start_broadcast(at::Tensor tensor, int root, std::string label) = 0;
  virtual std::unique_ptr<Work> start_barrier(std::string label) = 0;

 private:
  int rank_;
  int world_size_;
  std::chrono::milliseconds timeout_;
  Volume volume_;
};

}  // namespace zerorun
