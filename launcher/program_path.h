// Finds the program that the ranks run; error messages name a remedy. Any thread may call.
#pragma once

#include <string>

namespace zerorun {

/// The file to run: `program` itself if it has a '/', else the first match in $PATH. Throws UserError.
std::string find_program(const std::string& program);

}  // namespace zerorun
