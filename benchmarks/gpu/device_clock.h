// Times work on a rank's device by the device's own clock, and reads how much of its memory is in use. Uses
// only LibTorch's generic interfaces, so programs need no CUDA to be linked or started. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "device/device.h"

namespace zerorun {

class DeviceClock {
 public:
  /// `device` must outlive this object.
  explicit DeviceClock(Device& device) : device_(&device) {}

  Device& device() const { return *device_; }
  c10::Device location() const { return device_->location(); }
  bool is_gpu() const { return location().is_cuda(); }

  /// Milliseconds from the start of `body` until all work is done that it gave to the calling thread's stream
  /// and to the lanes. On a GPU events measure them, and the host waits only after `body`.
  double time(const std::function<void()>& body);
  /// The same by the host's clock.
  double time_on_host(const std::function<void()>& body);
  /// Waits for all work of the device.
  void wait() const;

  /// Bytes of a GPU that are in use, whoever uses them; on the CPU the resident memory of this process.
  int64_t bytes_in_use() const;
  /// Waits for the device, and frees the memory that LibTorch keeps for reuse.
  void empty_cache() const;

 private:
  Device* device_;
};

/// The name of the GPU, such as "NVIDIA H100 80GB HBM3"; for the CPU "CPU".
std::string name_of_card(c10::Device device);

}  // namespace zerorun
