// Finds the program that the ranks run; error messages name a remedy. Any thread may call.
#pragma once

#include <string>
#include <vector>

namespace zerorun {

/// The file to run: `program` itself if it has a '/', else the first match in $PATH. Throws UserError.
std::string find_program(const std::string& program);

/// The arguments that run `command`, a program and its arguments: for a module or a program that ends in .py
/// those of python3, unless `no_python`. Throws UserError if there is no such script.
std::vector<std::string> program_arguments(std::vector<std::string> command, bool module, bool no_python);

}  // namespace zerorun
