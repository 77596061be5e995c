// The calling thread's current GPU. A thread that has never set one counts as working on GPU 0, and the first
// CUDA call that needs a context then creates one there, which takes about 0.5 GB of GPU 0's memory. So
// threads of the project's own name their GPU before such a call.
#pragma once

#include <c10/core/Device.h>

namespace zerorun {

/// While it exists, GPU `device` is the current one. Afterwards the outer GPU is current again, unless this
/// process has no context there, because selecting that GPU would create one.
class CurrentGpu {
 public:
  /// Ignores errors: the CUDA calls that follow report them.
  explicit CurrentGpu(c10::DeviceIndex device);
  ~CurrentGpu();
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

 private:
  c10::DeviceIndex device_;
  int outer_;
};

}  // namespace zerorun
