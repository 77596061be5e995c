// Snapshots of tensors, for a checkpoint to read while training goes on. Tensors in the host's memory are
// read in place until keep() copies them; tensors of another device are copied to the host, after the
// device's queued work. Owned by the engine; only its thread calls pin().
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <vector>

#include "checkpoint/memory_snapshot.h"
#include "device/device.h"

namespace zerorun {

enum class CopyTime {
  at_once,        // the tensor may change without a call of keep()
  before_change,  // the tensor changes only after a call of keep()
};

/// A snapshot of `tensor`, which must be in host memory and contiguous. The snapshot keeps the tensor alive.
std::shared_ptr<checkpoint::MemorySnapshot> pinned(at::Tensor tensor);

class StatePins {
 public:
  /// `device` must outlive this object.
  explicit StatePins(Device& device) : device_(&device) {}

  /// Begins a new snapshot. The previous one may no longer be read.
  void begin();
  /// Adds `tensor`, which is contiguous and on the device, to the snapshot. The result keeps its bytes alive.
  std::shared_ptr<checkpoint::MemorySnapshot> pin(const at::Tensor& tensor, CopyTime time);
  /// Ends the snapshot: all of its tensors are pinned.
  void end();

  /// Returns when the snapshot is in the host's memory. Other threads may call it.
  void await(std::chrono::milliseconds timeout) const;
  /// Makes the current stream, which is about to change pinned tensors, wait for the copies.
  void before_change() const;

 private:
  at::Tensor host_memory(const at::Tensor& like);

  Device* device_;
  std::vector<at::Tensor> on_host_;  // copies from another device; the next snapshot reuses their memory
  size_t next_on_host_ = 0;
  Event copied_;
};

}  // namespace zerorun
