#include "doctor/gpus.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <system_error>

#include "doctor/nvml.h"

namespace zerorun {
namespace {

constexpr int kNeededCuda = 13000;  // LibTorch's wheel needs CUDA 13.0

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

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
  std::vector<std::string> entries;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder + "/gpus", error), end; !error && entry != end;
       entry.increment(error))
    entries.push_back(entry->path());
  std::ranges::sort(entries);
  for (const std::string& entry : entries)
    gpus.gpus.push_back({.name = model_in(content_of(entry + "/information"))});
}

// A type of NVIDIA's nvml.h.
struct NvmlMemory {
  unsigned long long total, free, used;
};
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
  for (unsigned number = 0; number < count; ++number) {
    NvmlDevice device = nullptr;
    const int code = nvml.call<int(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2", number, &device);
    if (code != 0) {
      gpus.gpus.push_back({.error = nvml.words_of(code)});
      continue;
    }
    text.fill('\0');
    NvmlMemory memory{};
    nvml.call<int(NvmlDevice, char*, unsigned)>("nvmlDeviceGetName", device, text.data(),
                                                unsigned{text.size()});
    nvml.call<int(NvmlDevice, NvmlMemory*)>("nvmlDeviceGetMemoryInfo", device, &memory);
    gpus.gpus.push_back({.name = text.data(), .memory_bytes = static_cast<int64_t>(memory.total)});
  }
}

std::string cuda_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Finding judge_driver(const Gpus& gpus) {
  const std::string subject = "GPU driver";
  if (gpus.kernel_driver.empty() && gpus.library_driver.empty()) {
    if (!gpus.gpus.empty())
      return {Verdict::problem, subject, "there is a GPU without a driver", "install NVIDIA's driver"};
    return {Verdict::ok, subject, "none, ranks run on the CPU"};
  }
  const std::string version = gpus.library_driver.empty() ? gpus.kernel_driver : gpus.library_driver;
  if (!gpus.kernel_driver.empty() && !gpus.library_driver.empty() &&
      gpus.kernel_driver != gpus.library_driver) {
    return {Verdict::problem, subject,
            "the kernel runs " + gpus.kernel_driver + " and the libraries are of " + gpus.library_driver,
            "restart the machine after an update of the driver"};
  }
  if (gpus.library_driver.empty()) {
    return {Verdict::problem, subject, version + ", but " + gpus.library_error,
            "start the container with the NVIDIA runtime (docker run --gpus all), or install the driver's "
            "libraries"};
  }
  if (gpus.cuda_version != 0 && gpus.cuda_version < kNeededCuda) {
    return {Verdict::problem, subject, version + ", which runs CUDA up to " + cuda_text(gpus.cuda_version),
            "LibTorch's wheel needs CUDA " + cuda_text(kNeededCuda) + ": install a driver from 580 on"};
  }
  return {Verdict::ok, subject,
          version + (gpus.cuda_version ? ", runs CUDA up to " + cuda_text(gpus.cuda_version) : "")};
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
  read_proc(root + "/proc/driver/nvidia", gpus);
  if (root.empty()) ask_nvml(gpus);
  return gpus;
}

Findings judge_gpus(const Gpus& gpus) {
  Findings findings = {judge_driver(gpus)};
  for (size_t number = 0; number < gpus.gpus.size(); ++number) {
    const Gpu& gpu = gpus.gpus[number];
    if (!gpu.error.empty()) {
      findings.push_back({Verdict::problem, "GPU " + std::to_string(number), "does not answer: " + gpu.error,
                          "look for Xid messages in `dmesg`, and reset the GPU or restart the machine"});
      continue;
    }
    const std::string memory =
        gpu.memory_bytes > 0 ? ", " + bytes_text(static_cast<double>(gpu.memory_bytes)) : "";
    findings.push_back({Verdict::ok, "GPU " + std::to_string(number), gpu.name + memory});
  }
  if (gpus.gpus.empty() && findings.front().verdict == Verdict::ok && !gpus.library_driver.empty()) {
    findings.push_back({Verdict::problem, "GPUs", "the driver is installed, but shows no GPU",
                        "start the container with --gpus, or look into `dmesg`"});
  }
  return findings;
}

}  // namespace zerorun
