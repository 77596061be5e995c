#include "base/cuda_driver.h"

#include <dlfcn.h>

namespace zerorun {
namespace {

// The functions of the driver API that this file calls. Their types and error codes are a stable ABI.
using CudaResult = int;
using Init = CudaResult(unsigned int flags);
using DeviceCount = CudaResult(int* count);
using ErrorName = CudaResult(CudaResult error, const char** name);
using DriverVersion = CudaResult(int* version);
using DeviceAttribute = CudaResult(int* value, int attribute, int device);

// For two errors that always have the same cause.
std::string remedy_of(CudaResult error) {
  constexpr CudaResult kNotReady = 802;
  constexpr CudaResult kMismatch = 803;
  if (error == kNotReady) return " (start the service nvidia-fabricmanager, or wait for it)";
  if (error == kMismatch) return " (restart the machine after an update of the driver)";
  return "";
}

std::string driver_error(void* driver, const char* call, CudaResult result) {
  auto* error_name = reinterpret_cast<ErrorName*>(dlsym(driver, "cuGetErrorName"));
  const char* name = nullptr;
  if (error_name) error_name(result, &name);
  return std::string("the NVIDIA driver's ") + call + " says " +
         (name ? name : "error " + std::to_string(result)) + remedy_of(result);
}

// Returns why this process cannot use the driver's GPUs, or an empty text if it can.
std::string unfit(void* driver, int count) {
  constexpr int kOldestDriver = 13000;  // CUDA 13.0
  constexpr int kMajorCapability = 75;
  auto* version_of = reinterpret_cast<DriverVersion*>(dlsym(driver, "cuDriverGetVersion"));
  auto* attribute_of = reinterpret_cast<DeviceAttribute*>(dlsym(driver, "cuDeviceGetAttribute"));
  int version = 0;
  if (version_of && version_of(&version) == 0 && version < kOldestDriver) {
    return "the NVIDIA driver supports CUDA " + std::to_string(version / 1000) + "." +
           std::to_string(version % 1000 / 10) + " at most, and 13.0 is needed: update the driver";
  }
  for (int device = 0; device < count; ++device) {
    int major = 0;
    if (!attribute_of || attribute_of(&major, kMajorCapability, device) != 0 || major >= 8) continue;
    return "GPU " + std::to_string(device) + " has compute capability " + std::to_string(major) +
           ".x, and 8.0 (A100) or later is needed: exclude it from CUDA_VISIBLE_DEVICES";
  }
  return "";
}

}  // namespace

bool has_cuda_driver() {
  return dlopen(kCudaDriver, RTLD_LAZY | RTLD_LOCAL) != nullptr;
}

int count_usable_gpus(std::string& reason, int* found) {
  if (found) *found = 0;
  void* driver = dlopen(kCudaDriver, RTLD_LAZY | RTLD_LOCAL);
  if (!driver) {
    const char* words = dlerror();
    reason = std::string("there is no NVIDIA driver (") + (words ? words : "unknown error") + ")";
    return 0;
  }
  auto* init = reinterpret_cast<Init*>(dlsym(driver, "cuInit"));
  auto* device_count = reinterpret_cast<DeviceCount*>(dlsym(driver, "cuDeviceGetCount"));
  if (!init || !device_count) {
    reason = std::string(kCudaDriver) + " is not the NVIDIA driver's";
    return 0;
  }
  int count = 0;
  if (CudaResult result = init(0); result != 0) {
    reason = driver_error(driver, "cuInit", result);
  } else if (result = device_count(&count); result != 0) {
    reason = driver_error(driver, "cuDeviceGetCount", result);
    return 0;
  } else if (count == 0) {
    reason = "the NVIDIA driver reports none (CUDA_VISIBLE_DEVICES may hide them)";
  } else {
    if (found) *found = count;
    reason = unfit(driver, count);
  }
  return reason.empty() ? count : 0;
}

}  // namespace zerorun
