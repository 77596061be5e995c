// A fake libcuda.so.1, the NVIDIA driver's library. Environment variables set the number of GPUs (FAKE_GPUS,
// default 0), of which CUDA_VISIBLE_DEVICES shows some, the major compute capability (FAKE_CAPABILITY,
// default 9), the CUDA version (FAKE_DRIVER, default 13000, which means 13.0), and what cuInit does
// (FAKE_INIT: an error code, "hang" or "crash").
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

namespace {

constexpr int kNoDevice = 100;

int number(const char* name, int otherwise) {
  const char* variable = std::getenv(name);
  return variable ? std::atoi(variable) : otherwise;
}

// CUDA ignores the first entry of the list that is no GPU, and all after it.
int gpus() {
  const int all = number("FAKE_GPUS", 0);
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!list) return all;
  std::istringstream entries(list);
  int visible = 0;
  for (std::string entry; std::getline(entries, entry, ',') && std::atoi(entry.c_str()) < all;) ++visible;
  return visible;
}

}  // namespace

extern "C" {

int cuInit(unsigned int) {
  const char* wish = std::getenv("FAKE_INIT");
  while (wish && std::strcmp(wish, "hang") == 0) ::pause();
  if (wish && std::strcmp(wish, "crash") == 0) std::abort();
  if (wish) return std::atoi(wish);
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
