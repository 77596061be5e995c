#include "launcher/machine.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace zerorun {

int count_gpus(const std::string& device_folder) {
  constexpr std::string_view kStem = "nvidia";
  std::error_code error;
  int gpus = 0;
  for (std::filesystem::directory_iterator entry(device_folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    const bool numbered =
        name.size() > kStem.size() && std::all_of(name.begin() + kStem.size(), name.end(),
                                                  [](unsigned char c) { return std::isdigit(c) != 0; });
    if (numbered && name.starts_with(kStem)) ++gpus;
  }
  return gpus;
}

std::string this_hostname() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace zerorun
