// Opens memory files (memfd) of other processes by their paths. Any thread.
#pragma once

#include "base/unique_fd.h"

namespace zerorun {

/// Opens the memory file at `path` (/proc/PID/fd/FD) for reading and writing. Not open if there is none, or
/// if the path has outlived its process and leads to another file than one of this name.
UniqueFd open_memory_file(const char* path, const char* name);

}  // namespace zerorun
