// Finds the program that the ranks run, with a remedy where it cannot be run. Any thread may call.
#pragma once

#include <string>

namespace zerorun {

/// The file that `program` names: itself if it has a '/', else the first match in $PATH. Throws UserError.
std::string find_program(const std::string& program);

}  // namespace zerorun
