// Stands for libcuda.so.1, the NVIDIA driver's library: finds as many GPUs as the variable FAKE_GPUS says.
#include <cstdlib>

namespace {

constexpr int kNoDevice = 100;

int gpus() {
  const char* variable = std::getenv("FAKE_GPUS");
  return variable ? std::atoi(variable) : 0;
}

}  // namespace

extern "C" {

int cuInit(unsigned int) {
  return gpus() > 0 ? 0 : kNoDevice;
}

int cuDeviceGetCount(int* count) {
  *count = gpus();
  return 0;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == kNoDevice ? "CUDA_ERROR_NO_DEVICE" : nullptr;
  return *name ? 0 : 1;
}
}
