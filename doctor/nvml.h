// NVML, the driver's library for monitoring GPUs, loaded if it is installed. Unlike CUDA it lists GPUs that
// do not answer, and ignores CUDA_VISIBLE_DEVICES. A value may be used by one thread at a time.
#pragma once

#include <string>

namespace zerorun::doctor {

// Types of NVIDIA's nvml.h. NVML's functions return 0 on success.
using NvmlDevice = void*;

/// Loads and initializes NVML, and shuts it down when destroyed.
class Nvml {
 public:
  Nvml();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// Why NVML cannot be used; empty if it can.
  const std::string& error() const { return error_; }

  /// Calls the function of this name and type; -1 if the library does not have it.
  template <typename Function, typename... Arguments>
  int call(const char* name, Arguments... arguments) const {
    auto* function = reinterpret_cast<Function*>(find(name));
    return function ? function(arguments...) : -1;
  }

  /// NVML's words for the result of a call.
  std::string words_of(int code) const;

 private:
  void* find(const char* name) const;

  void* library_;
  std::string error_;
};

}  // namespace zerorun::doctor
