// Checks paths that the program gives, before the system gets them. Any thread.
#pragma once

#include <filesystem>
#include <string>

namespace zerorun {

/// Throws UserError if `directory` is empty, or if it or `name` in it has a 0 byte, where the system would
/// cut the path off. `call`: "save_checkpoint".
void check_path(const std::filesystem::path& directory, const std::string& name, const std::string& call);

}  // namespace zerorun
