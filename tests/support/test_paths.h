// Where tests find their data and the programs that they start. Neither is compiled in, so that test programs
// also run on another machine, in a folder that scripts/gpu_bundle made. Safe from any thread.
#pragma once

#include <filesystem>

namespace zerorun::testing {

/// The folder of the running program, where the build puts all programs.
std::filesystem::path binary_folder();

/// The folder that contains tests/golden/data: $ZERORUN_TEST_SOURCE, or the nearest folder above the
/// program's. Throws std::runtime_error if there is none.
std::filesystem::path source_folder();

}  // namespace zerorun::testing
