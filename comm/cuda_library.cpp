#include "comm/cuda_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace zerorun {
namespace {

constexpr char kName[] = "libzerorun_cuda.so";
constexpr char kDriver[] = "libcuda.so.1";

std::string last_error() {
  const char* words = dlerror();
  return words ? words : "unknown error";
}

// The driver's interface, as far as it is needed here: its types and numbers never change.
using CudaResult = int;
using Init = CudaResult(unsigned int flags);
using DeviceCount = CudaResult(int* count);
using ErrorName = CudaResult(CudaResult error, const char** name);
using DriverVersion = CudaResult(int* version);
using DeviceAttribute = CudaResult(int* value, int attribute, int device);

std::string driver_error(void* driver, const char* call, CudaResult result) {
  auto* error_name = reinterpret_cast<ErrorName*>(dlsym(driver, "cuGetErrorName"));
  const char* name = nullptr;
  if (error_name) error_name(result, &name);
  return std::string("the NVIDIA driver's ") + call + " says " +
         (name ? name : "error " + std::to_string(result));
}

// Why none of the driver's GPUs will do; empty: they will.
std::string unfit(void* driver, int count) {
  constexpr int kOldestDriver = 13000;  // CUDA 13.0
  constexpr int kMajorCapability = 75;
  auto* version_of = reinterpret_cast<DriverVersion*>(dlsym(driver, "cuDriverGetVersion"));
  auto* attribute_of = reinterpret_cast<DeviceAttribute*>(dlsym(driver, "cuDeviceGetAttribute"));
  int version = 0;
  if (version_of && version_of(&version) == 0 && version < kOldestDriver) {
    return "the NVIDIA driver knows CUDA " + std::to_string(version / 1000) + "." +
           std::to_string(version % 1000 / 10) + " at most, and 13.0 is needed: update the driver";
  }
  for (int device = 0; device < count; ++device) {
    int major = 0;
    if (!attribute_of || attribute_of(&major, kMajorCapability, device) != 0 || major >= 8) continue;
    return "GPU " + std::to_string(device) + " has compute capability " + std::to_string(major) +
           ".x, and 8.0 (A100) or later is needed: let CUDA_VISIBLE_DEVICES leave it out";
  }
  return "";
}

// $ZERORUN_CUDA_LIBRARY alone; else by name, along the program's RUNPATH; else beside the program.
std::vector<std::string> usual_candidates() {
  const char* chosen = std::getenv("ZERORUN_CUDA_LIBRARY");
  if (chosen && *chosen) return {chosen};
  std::vector<std::string> candidates = {kName};
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    candidates.push_back(program.parent_path() / kName);
    candidates.push_back(program.parent_path().parent_path() / "lib" / kName);
  }
  return candidates;
}

// See the note in the header. Nothing is asked of the driver: a process that has done so must not fork.
bool wanted_before_main() {
  const char* device = std::getenv("ZERORUN_DEVICE");
  if (device && std::string(device) == "cpu") return false;
  void* driver = dlopen(kDriver, RTLD_LAZY | RTLD_LOCAL);
  return driver != nullptr;
}

[[maybe_unused]] const bool loaded_before_main = wanted_before_main() && cuda_library().connect != nullptr;

}  // namespace

int count_usable_gpus(std::string& reason, int* found) {
  if (found) *found = 0;
  void* driver = dlopen(kDriver, RTLD_LAZY | RTLD_LOCAL);
  if (!driver) {
    reason = "there is no NVIDIA driver (" + last_error() + ")";
    return 0;
  }
  auto* init = reinterpret_cast<Init*>(dlsym(driver, "cuInit"));
  auto* device_count = reinterpret_cast<DeviceCount*>(dlsym(driver, "cuDeviceGetCount"));
  if (!init || !device_count) {
    reason = std::string(kDriver) + " is not the NVIDIA driver's";
    return 0;
  }
  int count = 0;
  if (CudaResult result = init(0); result != 0) {
    reason = driver_error(driver, "cuInit", result);
  } else if (result = device_count(&count); result != 0) {
    reason = driver_error(driver, "cuDeviceGetCount", result);
    return 0;
  } else if (count == 0) {
    reason = "the NVIDIA driver counts none (CUDA_VISIBLE_DEVICES may hide them)";
  } else {
    if (found) *found = count;
    reason = unfit(driver, count);
  }
  return reason.empty() ? count : 0;
}

const CudaLibrary& cuda_library() {
  static const CudaLibrary library = load_cuda_library(usual_candidates());
  return library;
}

CudaLibrary load_cuda_library(const std::vector<std::string>& candidates) {
  std::string words;
  for (const std::string& candidate : candidates) {
    // All symbols at once: a library that does not fit must be noticed here, and not in mid-training.
    void* handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle) {
      void* connect = dlsym(handle, kConnectCuda);
      if (connect) return {reinterpret_cast<ConnectCuda*>(connect), ""};
      return {nullptr, explain_load_failure(candidate + ": undefined symbol: " + kConnectCuda)};
    }
    words = last_error();
    const bool there = words.find(candidate + ": cannot open shared object file") == std::string::npos;
    if (there) break;
  }
  return {nullptr, explain_load_failure(words)};
}

std::string explain_load_failure(const std::string& linkers_words) {
  const std::string failure = "cannot load the CUDA part of ZeroRun: " + linkers_words + ": ";
  const size_t missing = linkers_words.find(": cannot open shared object file");
  if (missing == std::string::npos) {
    return failure +
           "it, or a library that it needs, is of another version than what it was built with: "
           "build ZeroRun anew where it is to run, or let LD_LIBRARY_PATH name the folder of the "
           "library that fits";
  }
  const std::string library = std::filesystem::path(linkers_words.substr(0, missing)).filename();
  if (library == kName) {
    return failure +
           "build ZeroRun where the CUDA toolkit is found, or let ZERORUN_CUDA_LIBRARY name that file";
  }
  return failure + "install " + library +
         ", or let LD_LIBRARY_PATH name its folder (docs/gpu.md lists what is needed)";
}

}  // namespace zerorun
