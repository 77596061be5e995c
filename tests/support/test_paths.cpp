#include "tests/support/test_paths.h"

#include <cstdlib>
#include <stdexcept>

namespace zerorun::testing {

namespace fs = std::filesystem;

fs::path binary_folder() {
  return fs::read_symlink("/proc/self/exe").parent_path();
}

fs::path source_folder() {
  if (const char* chosen = std::getenv("ZERORUN_TEST_SOURCE"); chosen && *chosen) return chosen;
  for (fs::path folder = binary_folder(); folder != folder.parent_path(); folder = folder.parent_path()) {
    if (fs::exists(folder / "tests/golden/data")) return folder;
  }
  throw std::runtime_error("no folder above " + binary_folder().string() +
                           " contains tests/golden/data: set ZERORUN_TEST_SOURCE to the checkout");
}

}  // namespace zerorun::testing
