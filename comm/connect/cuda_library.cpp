#include "comm/connect/cuda_library.h"

#include <dlfcn.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/cuda_driver.h"

namespace zerorun {
namespace {

// With the version: ZeroRun is linked into the program, and works only with the GPU part of its own version.
constexpr char kName[] = "libzerorun_cuda.so." ZERORUN_SOVERSION;

std::string last_error() {
  const char* words = dlerror();
  return words ? words : "unknown error";
}

// Returns only $ZERORUN_CUDA_LIBRARY if it is set. Otherwise returns the library's name, which the linker
// finds along the program's RUNPATH, and then paths beside the program.
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

// Whether pip installs this library with the wheel `torch`: LibTorch's own, and those of NVIDIA except the
// driver's.
bool is_of_torch_wheel(const std::string& library) {
  constexpr std::array<std::string_view, 15> kStems = {"libtorch",  "libc10",       "libcudart",   "libcudnn",
                                                       "libcublas", "libcufft",     "libcufile",   "libcupti",
                                                       "libcurand", "libcusolver",  "libcusparse", "libnccl",
                                                       "libnvrtc",  "libnvJitLink", "libnvshmem"};
  return std::ranges::any_of(kStems, [&](std::string_view stem) { return library.starts_with(stem); });
}

// See [Note: CUDA first]. Calls no driver function, because a process that has called one must not fork.
bool wanted_before_main() {
  const char* device = std::getenv("ZERORUN_DEVICE");
  if (device && std::string(device) == "cpu") return false;
  return has_cuda_driver();
}

[[maybe_unused]] const bool loaded_before_main = wanted_before_main() && cuda_library().connect != nullptr;

}  // namespace

const CudaLibrary& cuda_library() {
  static const CudaLibrary library = load_cuda_library(usual_candidates());
  return library;
}

CudaLibrary load_cuda_library(const std::vector<std::string>& candidates) {
  std::string words;
  for (const std::string& candidate : candidates) {
    // RTLD_NOW resolves all symbols here, so an incompatible library fails now and not during training.
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
           "it, or a library that it needs, has another version than at build time: rebuild ZeroRun on this "
           "machine, or add the folder of the matching library to LD_LIBRARY_PATH";
  }
  const std::string library = std::filesystem::path(linkers_words.substr(0, missing)).filename();
  if (is_of_torch_wheel(library)) {
    return failure + "pip install 'torch==" + std::to_string(TORCH_VERSION_MAJOR) + "." +
           std::to_string(TORCH_VERSION_MINOR) +
           ".*' in an environment, activate it and run scripts/build again (pip installs NVIDIA's libraries "
           "with it), or add the folder of " +
           library + " to LD_LIBRARY_PATH";
  }
  if (library.starts_with("libzerorun_cuda.so")) {
    return failure +
           "build ZeroRun on a machine with the CUDA toolkit, or set ZERORUN_CUDA_LIBRARY to the path of "
           "that file";
  }
  return failure + "install " + library +
         ", or add its folder to LD_LIBRARY_PATH (docs/gpu.md lists the requirements)";
}

}  // namespace zerorun
