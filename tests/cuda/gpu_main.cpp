// The main function of programs whose tests need a GPU. Without a GPU it prints the reason and exits with 77.
// The tests of the program bin/NAME are in the library lib/libNAME_body.so beside it. It is loaded after a
// GPU was found, because LibTorch's CUDA libraries may be missing on a machine without a GPU.
#include <dlfcn.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "base/cuda_driver.h"

namespace {

constexpr int kSkipped = 77;

}  // namespace

int main(int argc, char** argv) {
  std::string reason;
  if (zerorun::count_usable_gpus(reason) == 0) {
    std::printf("skipped: %s\n", reason.c_str());
    return kSkipped;
  }
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const auto library =
      program.parent_path().parent_path() / "lib" / ("lib" + program.filename().string() + "_body.so");
  void* tests = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (tests == nullptr) {
    std::fprintf(stderr, "error: there is a GPU, and the tests cannot be loaded: %s\n", dlerror());
    return 1;
  }
  const auto run = reinterpret_cast<int (*)(int, char**)>(dlsym(tests, "run_gpu_tests"));
  if (run == nullptr) {
    std::fprintf(stderr, "error: %s\n", dlerror());
    return 1;
  }
  return run(argc, argv);
}
