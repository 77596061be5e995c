#include "launcher/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <memory>
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

int count_usable_cores() {
  // The kernel refuses a set smaller than its own: grow until it fits.
  for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
    std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(capacity),
                                                         [](cpu_set_t* s) { CPU_FREE(s); });
    const size_t bytes = CPU_ALLOC_SIZE(capacity);
    if (sched_getaffinity(0, bytes, set.get()) == 0) return CPU_COUNT_S(bytes, set.get());
    if (errno != EINVAL) break;
  }
  return 1;
}

std::string this_hostname() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

}  // namespace zerorun
