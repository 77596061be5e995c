// Tensors as they are at one moment, for a checkpoint to read while training goes on. In the host's memory
// they are read where they lie, until keep(); from another device they are copied to the host behind what was
// asked of it before. Owned by the engine; pin() is its thread's.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <vector>

#include "checkpoint/pinned_bytes.h"
#include "device/device.h"

namespace zerorun {

enum class CopyTime {
  at_once,        // nobody would see it changing
  before_change,  // whoever changes it says so before
};

/// Bytes that keep `tensor`, in the host's memory and contiguous.
std::shared_ptr<PinnedBytes> pinned(at::Tensor tensor);

class StatePins {
 public:
  /// `device` outlives it.
  explicit StatePins(Device& device) : device_(&device) {}

  /// What is pinned from now on is of another moment; nobody reads what was pinned before any more.
  void begin();
  /// `tensor`: contiguous, on the device. Keeps it.
  std::shared_ptr<PinnedBytes> pin(const at::Tensor& tensor, CopyTime time);
  /// All of the moment is pinned.
  void end();

  /// What is pinned is in the host's memory when this returns. Another thread's too.
  void await(std::chrono::milliseconds timeout) const;
  /// The current stream is about to change what was pinned.
  void before_change() const;

 private:
  at::Tensor host_memory(const at::Tensor& like);

  Device* device_;
  std::vector<at::Tensor> on_host_;  // of a device that has other memory; used again by the next moment
  size_t next_on_host_ = 0;
  Event copied_;
};

}  // namespace zerorun
