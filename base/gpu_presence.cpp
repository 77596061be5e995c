#include "base/gpu_presence.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

namespace zerorun {
namespace {

std::vector<std::filesystem::path> entries_of(const std::string& folder) {
  std::vector<std::filesystem::path> entries;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    entries.push_back(entry->path());
  std::ranges::sort(entries);
  return entries;
}

std::string word_in(const std::filesystem::path& file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

// The kernel keeps the vendor of a device that has gone. A read of the configuration space asks the device.
bool answers_on_bus(const std::filesystem::path& device) {
  std::array<char, 2> vendor{};
  std::ifstream file(device / "config", std::ios::binary);
  const bool read = static_cast<bool>(file.read(vendor.data(), vendor.size()));
  return !read || vendor != std::array{'\xff', '\xff'};
}

}  // namespace

std::vector<PciGpu> read_pci_gpus(const std::string& root) {
  constexpr std::string_view kNvidia = "0x10de";
  constexpr std::string_view kDisplay = "0x03";  // the class of VGA, 3D and other display controllers
  std::vector<PciGpu> gpus;
  for (const auto& device : entries_of(root + "/sys/bus/pci/devices")) {
    if (word_in(device / "vendor") != kNvidia || !word_in(device / "class").starts_with(kDisplay)) continue;
    std::error_code error;
    const auto driver = std::filesystem::read_symlink(device / "driver", error);
    gpus.push_back({device.filename(), error ? "" : driver.filename().string(), answers_on_bus(device)});
  }
  return gpus;
}

int count_gpu_files(const std::string& device_folder) {
  constexpr std::string_view kStem = "nvidia";
  return static_cast<int>(std::ranges::count_if(entries_of(device_folder), [&](const auto& entry) {
    const std::string name = entry.filename();
    return name.size() > kStem.size() && name.starts_with(kStem) &&
           std::all_of(name.begin() + kStem.size(), name.end(),
                       [](unsigned char c) { return std::isdigit(c) != 0; });
  }));
}

bool has_gpus(bool driver_installed, const std::string& root) {
  return count_gpu_files(root + "/dev") > 0 || (driver_installed && !read_pci_gpus(root).empty());
}

bool hides_all_gpus(const char* visible_devices) {
  if (visible_devices == nullptr) return false;
  const std::string_view value = visible_devices;
  // CUDA ignores the first entry that is no GPU and all after it. Job schedulers write these words.
  return value.empty() || value == "-1" || value.starts_with("-1,") || value == "NoDevFiles" ||
         value == "none" || value == "void";
}

}  // namespace zerorun
