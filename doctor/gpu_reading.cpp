// read_gpus(): collects what is known of the GPUs.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

#include "doctor/gpus.h"
#include "doctor/nvml.h"
#include "doctor/system_file.h"

namespace zerorun::doctor {
namespace {

// Types and constants of NVIDIA's nvml.h.
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlPciInfo {
  char old_address[16];
  unsigned domain, bus, device;
  unsigned device_id, subsystem_id;
  char address[32];
};
constexpr int kUncorrected = 1;
constexpr int kSinceDriverLoad = 0;
constexpr unsigned kMostNvlinks = 18;

std::string model_in(const std::string& information) {
  std::istringstream lines(information);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("Model:")) continue;
    const size_t start = line.find_first_not_of(" \t", 6);
    if (start != std::string::npos) return line.substr(start);
  }
  return "unknown model";
}

void read_proc(const std::string& folder, Gpus& gpus) {
  gpus.kernel_driver = driver_version_in(content_of(folder + "/version"));
  std::vector<std::filesystem::path> entries;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder + "/gpus", error), end; !error && entry != end;
       entry.increment(error))
    entries.push_back(entry->path());
  std::ranges::sort(entries);
  for (const auto& entry : entries) {
    const std::string address = entry.filename();
    gpus.listed.push_back(address);
    gpus.gpus.push_back({.name = model_in(content_of(entry / "information")), .address = address});
  }
}

// Calls a function of NVML that switches between two modes, current and after the next restart.
std::optional<bool> mode_of(const Nvml& nvml, NvmlDevice device, const char* function) {
  unsigned now = 0;
  unsigned later = 0;
  const int code = nvml.call<int(NvmlDevice, unsigned*, unsigned*)>(function, device, &now, &later);
  return code == 0 ? std::optional(now != 0) : std::nullopt;
}

void ask_health(const Nvml& nvml, NvmlDevice device, Gpu& gpu) {
  gpu.ecc_on = mode_of(nvml, device, "nvmlDeviceGetEccMode");
  gpu.mig_on = mode_of(nvml, device, "nvmlDeviceGetMigMode");
  unsigned long long errors = 0;
  if (nvml.call<int(NvmlDevice, int, int, unsigned long long*)>("nvmlDeviceGetTotalEccErrors", device,
                                                                kUncorrected, kSinceDriverLoad, &errors) == 0)
    gpu.uncorrected_errors = static_cast<int64_t>(errors);
  unsigned corrected = 0;
  unsigned uncorrected = 0;
  unsigned pending = 0;
  unsigned failed = 0;
  if (nvml.call<int(NvmlDevice, unsigned*, unsigned*, unsigned*, unsigned*)>(
          "nvmlDeviceGetRemappedRows", device, &corrected, &uncorrected, &pending, &failed) == 0) {
    gpu.remap_pending = pending != 0;
    gpu.remap_failed = failed != 0;
  }
  int mode = 0;
  if (nvml.call<int(NvmlDevice, int*)>("nvmlDeviceGetComputeMode", device, &mode) == 0)
    gpu.compute_mode = static_cast<ComputeMode>(mode);
  for (unsigned link = 0; link < kMostNvlinks; ++link) {
    int up = 0;
    if (nvml.call<int(NvmlDevice, unsigned, int*)>("nvmlDeviceGetNvLinkState", device, link, &up) != 0)
      continue;
    ++(up != 0 ? gpu.nvlinks : gpu.broken_nvlinks);
  }
}

Gpu ask_gpu(const Nvml& nvml, unsigned number) {
  Gpu gpu;
  NvmlDevice device = nullptr;
  const int code = nvml.call<int(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2", number, &device);
  if (code != 0) {
    gpu.error = nvml.words_of(code);
    return gpu;
  }
  std::array<char, 96> text{};
  NvmlMemory memory{};
  NvmlPciInfo pci{};
  nvml.call<int(NvmlDevice, char*, unsigned)>("nvmlDeviceGetName", device, text.data(),
                                              unsigned{text.size()});
  nvml.call<int(NvmlDevice, NvmlMemory*)>("nvmlDeviceGetMemoryInfo", device, &memory);
  gpu.name = text.data();
  gpu.memory_bytes = static_cast<int64_t>(memory.total);
  if (nvml.call<int(NvmlDevice, NvmlPciInfo*)>("nvmlDeviceGetPciInfo_v3", device, &pci) == 0) {
    std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
    gpu.address = text.data();
  }
  ask_health(nvml, device, gpu);
  return gpu;
}

void ask_nvml(Gpus& gpus) {
  const Nvml nvml;
  gpus.library_error = nvml.error();
  if (!nvml.error().empty()) return;
  std::array<char, 96> text{};
  nvml.call<int(char*, unsigned)>("nvmlSystemGetDriverVersion", text.data(), unsigned{text.size()});
  gpus.library_driver = text.data();
  nvml.call<int(int*)>("nvmlSystemGetCudaDriverVersion_v2", &gpus.cuda_version);
  unsigned count = 0;
  nvml.call<int(unsigned*)>("nvmlDeviceGetCount_v2", &count);
  if (count > 0) gpus.gpus.clear();  // a container may use fewer GPUs than /proc lists
  for (unsigned number = 0; number < count; ++number) gpus.gpus.push_back(ask_gpu(nvml, number));
}

}  // namespace

std::string driver_version_in(const std::string& text) {
  std::istringstream words(text.substr(0, text.find('\n')));
  for (std::string word; words >> word;) {
    const bool digits_and_points = word.find_first_not_of("0123456789.") == std::string::npos;
    if (digits_and_points && std::ranges::count(word, '.') >= 1) return word;
  }
  return {};
}

Gpus read_gpus(const std::string& root) {
  Gpus gpus;
  gpus.pci = read_pci_gpus(root);
  read_proc(root + "/proc/driver/nvidia", gpus);
  ask_nvml(gpus);
  gpus.xids = read_xids(root);
  return gpus;
}

}  // namespace zerorun::doctor
