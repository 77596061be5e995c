// A fake libnvidia-ml.so.1, the driver's library for monitoring. Environment variables set the number of GPUs
// (FAKE_NVML_GPUS, default 0) and which of them does not answer (FAKE_LOST, its number).
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kInvalid = 2;
constexpr int kLost = 15;

struct Memory {
  unsigned long long total, free, used;
};

int number(const char* name, int otherwise) {
  const char* variable = std::getenv(name);
  return variable ? std::atoi(variable) : otherwise;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return 0;
}

int nvmlShutdown() {
  return 0;
}

const char* nvmlErrorString(int code) {
  return code == kLost ? "GPU is lost" : "Invalid Argument";
}

int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::strncpy(text, "580.65.06", size);
  return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = number("FAKE_NVML_GPUS", 0);
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (static_cast<int>(index) == number("FAKE_LOST", -1)) return kLost;
  *device = reinterpret_cast<void*>(std::uintptr_t{index} + 1);
  return 0;
}

int nvmlDeviceGetName(void* device, char* text, unsigned size) {
  if (device == nullptr) return kInvalid;
  std::strncpy(text, "NVIDIA H100 80GB HBM3", size);
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  if (device == nullptr) return kInvalid;
  memory->total = 80ULL << 30;
  return 0;
}
}
