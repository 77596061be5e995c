// Snapshots of tensors, for a checkpoint to read while training goes on. Tensors in the host's memory are
// read in place until keep(); tensors of another device are copied to the host behind the work queued before.
// Owned by the engine; only its thread calls pin().
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <vector>

#include "checkpoint/memory_snapshot.h"
#include "device/device.h"

namespace zerorun {

enum class CopyTime {
  at_once,        // its changes are not seen
  before_change,  // whoever changes it calls keep() first
};

/// The bytes of `tensor`, which they keep alive; in the host's memory and contiguous.
std::shared_ptr<MemorySnapshot> pinned(at::Tensor tensor);

class StatePins {
 public:
  /// `device` outlives it.
  explicit StatePins(Device& device) : device_(&device) {}

  /// Begins a new snapshot. The previous one may no longer be read.
  void begin();
  /// `tensor`: contiguous, on the device. The result keeps the bytes alive.
  std::shared_ptr<MemorySnapshot> pin(const at::Tensor& tensor, CopyTime time);
  /// Everything of the snapshot is pinned.
  void end();

  /// Returns when the snapshot is in the host's memory. Other threads may call it.
  void await(std::chrono::milliseconds timeout) const;
  /// Makes the current stream, which is about to change what is pinned, wait for the copies.
  void before_change() const;

 private:
  at::Tensor host_memory(const at::Tensor& like);

  Device* device_;
  std::vector<at::Tensor> on_host_;  // copies from another device; the next snapshot reuses their memory
  size_t next_on_host_ = 0;
  Event copied_;
};

}  // namespace zerorun
