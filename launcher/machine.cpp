#include "launcher/machine.h"

#include <unistd.h>

#include <array>
#include <cstdlib>

namespace zerorun::launcher {

std::string this_hostname() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace zerorun::launcher
