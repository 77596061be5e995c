// A fake libnvidia-ml.so.1, the driver's library for monitoring. Environment variables set the result of
// nvmlInit (FAKE_NVML_INIT), the number of GPUs (FAKE_NVML_GPUS, default 0), which of them does not answer
// (FAKE_LOST, its number), and of all others their uncorrected errors (FAKE_ERRORS), compute mode
// (FAKE_MODE), whether MIG is on (FAKE_MIG), and the NVLinks that are up, of 18 (FAKE_NVLINKS, default 18).
// GPU 0 is at PCI address 0000:10:00.0, GPU 1 at 0000:11:00.0, ...
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kInvalid = 2;
constexpr int kNotLoaded = 9;
constexpr int kLost = 15;

struct Memory {
  unsigned long long total, free, used;
};

struct PciInfo {
  char old_address[16];
  unsigned domain, bus, device;
  unsigned device_id, subsystem_id;
  char address[32];
};

int number(const char* name, int otherwise) {
  const char* variable = std::getenv(name);
  return variable ? std::atoi(variable) : otherwise;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return number("FAKE_NVML_INIT", 0);
}

int nvmlShutdown() {
  return 0;
}

const char* nvmlErrorString(int code) {
  return code == kLost ? "GPU is lost" : code == kNotLoaded ? "Driver Not Loaded" : "Invalid Argument";
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

int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* pci) {
  pci->domain = 0;
  pci->bus = 0x10 + static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(device)) - 1;
  pci->device = 0;
  return 0;
}

int nvmlDeviceGetEccMode(void*, unsigned* now, unsigned* later) {
  *now = *later = 1;
  return 0;
}

int nvmlDeviceGetMigMode(void*, unsigned* now, unsigned* later) {
  *now = *later = number("FAKE_MIG", 0);
  return 0;
}

int nvmlDeviceGetTotalEccErrors(void*, int kind, int counter, unsigned long long* errors) {
  if (kind != 1 || counter != 0) return kInvalid;
  *errors = number("FAKE_ERRORS", 0);
  return 0;
}

int nvmlDeviceGetRemappedRows(void*, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *corrected = *uncorrected = *pending = *failed = 0;
  return 0;
}

int nvmlDeviceGetComputeMode(void*, int* mode) {
  *mode = number("FAKE_MODE", 0);
  return 0;
}

int nvmlDeviceGetNvLinkState(void*, unsigned link, int* up) {
  if (link >= 18) return kInvalid;
  *up = static_cast<int>(link) < number("FAKE_NVLINKS", 18);
  return 0;
}
}
