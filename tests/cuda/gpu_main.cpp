// The main function of programs whose tests need a GPU. Where there is none it says so and exits with 77. The
// tests are a library of their own that is loaded afterwards: LibTorch's CUDA libraries cannot be on every
// machine that builds this.
#include <dlfcn.h>

#include <cstdio>

namespace {

constexpr int kSkipped = 77;

// Why there is no GPU; null: there is one.
const char* missing_gpu() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return "no NVIDIA driver (libcuda.so.1) on this machine";
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  if (init == nullptr || count == nullptr) return "libcuda.so.1 on this machine is no NVIDIA driver";
  int devices = 0;
  if (init(0) != 0 || count(&devices) != 0 || devices == 0) return "the NVIDIA driver finds no GPU";
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* reason = missing_gpu()) {
    std::printf("skipped: %s\n", reason);
    return kSkipped;
  }
  void* tests = dlopen(ZERORUN_GPU_TESTS, RTLD_NOW | RTLD_GLOBAL);
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
