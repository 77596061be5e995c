// A fake libcuda.so.1, the NVIDIA driver's library. Environment variables set the number of GPUs (FAKE_GPUS,
// default 0), the major compute capability (FAKE_CAPABILITY, default 9) and the CUDA version (FAKE_DRIVER,
// default 13000, which means 13.0).
#include <cstdlib>

namespace {

constexpr int kNoDevice = 100;

int number(const char* name, int otherwise) {
  const char* variable = std::getenv(name);
  return variable ? std::atoi(variable) : otherwise;
}

int gpus() {
  return number("FAKE_GPUS", 0);
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

int cuDriverGetVersion(int* version) {
  *version = number("FAKE_DRIVER", 13000);
  return 0;
}

int cuDeviceGetAttribute(int* value, int /*attribute*/, int /*device*/) {
  *value = number("FAKE_CAPABILITY", 9);
  return 0;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == kNoDevice ? "CUDA_ERROR_NO_DEVICE" : nullptr;
  return *name ? 0 : 1;
}
}
